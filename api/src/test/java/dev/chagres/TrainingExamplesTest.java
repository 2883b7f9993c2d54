package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.Sequences;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Layer;
import dev.chagres.layer.Linear;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassProfile;
import dev.chagres.layer.ProfilerRanges;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The examples of training that the Javadoc of classes shows: each region here is one of them, and runs. */
@Tag("L0")
@Tag("L1")
class TrainingExamplesTest {
    @TempDir
    private Path folder;

    private Device device;

    @BeforeEach
    void open() {
        device = Device.open();
    }

    @AfterEach
    void close() {
        device.close();
    }

    @Test
    void graph() {
        try (ExampleModel model = new ExampleModel(device);
                Pass pass = Pass.training(device);
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard())) {
            Sequences sequences = model.sequences;
            Layer layers = model.layers;
            Tensor x = model.x;
            // @start region="graph"
            Runnable step = () -> {
                pass.begin(sequences);
                layers.backward(layers.forward(x, pass), pass);
                optimizer.step(1e-3f);
            };
            step.run(); // takes memory and builds kernels
            pass.end();
            try (Graph graph = device.stream().capture(step)) { // recorded, not run
                for (int i = 1; i < 3; i++) {
                    optimizer.rate(1e-3f / i); // read by the next launch, like whatever x holds by then
                    graph.launch();
                }
            }
            // @end
            assertEquals(3, model.parameters.step());
        }
    }

    @Test
    void optimizer() {
        try (ExampleModel model = new ExampleModel(device);
                Pass pass = Pass.training(device)) {
            Parameters parameters = model.parameters;
            Sequences sequences = model.sequences;
            Layer layers = model.layers;
            Tensor x = model.x;
            float before = parameters.weights().toFloats(device.stream())[0];
            // @start region="optimizer"
            GradientNorm norm = new GradientNorm(parameters, 1); // clips to a norm of 1
            try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                for (int step = 0; step < 3; step++) {
                    pass.begin(sequences);
                    layers.backward(layers.forward(x, pass), pass);
                    norm.compute();
                    optimizer.step(1e-3f, norm); // the next backward call overwrites the gradients
                }
            }
            // @end
            assertTrue(before != parameters.weights().toFloats(device.stream())[0]);
            assertEquals(3, parameters.step());
        }
    }

    @Test
    void lossScaling() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 40, Initializer.normal(0.02f), plan.group("linear"));
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT16, 42);
                Pass pass = Pass.training(device)) {
            // @start region="lossScaling"
            LossScaler scaler = new LossScaler(parameters, LossScaler.Config.standard());
            GradientNorm norm = new GradientNorm(scaler, 1);
            CrossEntropy crossEntropy = new CrossEntropy(40);
            try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
                for (int step = 0; step < 3; step++) {
                    pass.begin();
                    Tensor x = pass.scope().tensor(DType.FLOAT16, 8, 16);
                    Tensor labels = pass.scope().tensor(DType.INT32, 8);
                    x.zero(device.stream());
                    labels.zero(device.stream());
                    crossEntropy.forward(linear.forward(x, pass), labels, pass);
                    linear.backward(crossEntropy.backward(1, scaler.scale(), pass), pass);
                    norm.compute();
                    optimizer.step(1e-3f, norm);
                }
            }
            // @end
            assertEquals(0, scaler.skippedSteps());
            assertEquals(65536, scaler.currentScale());
        }
    }

    @Test
    void safetensors() {
        Stream stream = device.stream();
        Path file = folder.resolve("run.safetensors");
        try (ExampleModel model = new ExampleModel(device);
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard())) {
            Parameters parameters = model.parameters;
            float[] before = parameters.weights().toFloats(stream);
            // @start region="safetensors"
            State state = State.of(parameters.state(), optimizer.state());
            Safetensors.save(file, state, stream, Map.of("about", "an example"));
            parameters.weights().zero(stream);
            Safetensors.load(file, state, stream); // the run goes on with the same bits
            // @end
            assertArrayEquals(before, parameters.weights().toFloats(stream));
        }
    }

    @Test
    void observers() {
        try (ExampleModel model = new ExampleModel(device);
                Pass pass = Pass.training(device)) {
            Parameters parameters = model.parameters;
            Sequences sequences = model.sequences;
            Layer layers = model.layers;
            Tensor x = model.x;
            // @start region="observers"
            try (PassProfile profile = new PassProfile(device);
                    ProfilerRanges ranges = new ProfilerRanges()) {
                pass.observe(profile); // time and memory by layer
                pass.observe(ranges); // names for Nsight Systems and other profilers
                for (int step = 0; step < 20; step++) {
                    if (step == 10) {
                        profile.clear(); // the first steps build what is used for the first time
                    }
                    pass.begin(sequences);
                    layers.backward(layers.forward(x, pass), pass);
                    parameters.nextStep();
                }
                System.out.println(profile.table());
                pass.forget(profile);
                pass.forget(ranges);
            }
            // @end
            assertEquals(20, parameters.step());
        }
    }
}
