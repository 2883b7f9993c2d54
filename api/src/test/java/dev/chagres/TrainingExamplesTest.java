package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.Sequences;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.UploadRing;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassProfile;
import dev.chagres.pass.ProfilerRanges;
import dev.chagres.pass.SharedInput;
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
    void fanOut() {
        ModelPlan plan = new ModelPlan();
        Linear trunk = new Linear(16, 32, Initializer.normal(0.1f), plan.group("trunk"));
        Linear first = new Linear(32, 8, Initializer.normal(0.1f), plan.group("first"));
        Linear second = new Linear(32, 4, Initializer.normal(0.1f), plan.group("second"));
        SharedInput fanOut = new SharedInput("trunk");
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
                Scope inputs = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.begin();
            Tensor x = inputs.tensor(DType.FLOAT32, 1, 16);
            x.set(device.stream(), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16f);
            // @start region="fanOut"
            Tensor h = fanOut.forward(trunk.forward(x, pass), pass);
            Tensor a = first.forward(h, pass);
            Tensor b = second.forward(h, pass);
            fanOut.backward(second, b, pass); // as if the loss were half the sum of the squares of a and b
            fanOut.backward(first, a, pass);
            Tensor dx = trunk.backward(fanOut.backward(pass), pass);
            // @end
            assertEquals(16, dx.count());
            assertTrue(parameters.all().stream().allMatch(Parameter::hasGradient));
        }
    }

    @Test
    void uploadRing() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(1024, 16, Initializer.normal(1), plan.group("embedding"));
        Linear head = new Linear(16, 1024, Initializer.normal(0.1f), plan.group("head"));
        CrossEntropy crossEntropy = new CrossEntropy(1024);
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 64, 32, 2);
        Batch batch = new Batch(shape);
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
                Pass pass = Pass.training(device);
                SequencePacker packer = new SequencePacker(shape, new CountedSequences());
                UploadRing ring = new UploadRing(device, shape, 3)) {
            assertTrue(packer.fill(batch));
            // @start region="uploadRing"
            ring.upload(batch); // returns at once; the batch may be filled again
            ModelInput input;
            do {
                pass.begin();
                input = ring.next(pass.scope()); // each micro-batch, in order
                pass.sequences(input.sequences());
                crossEntropy.forward(head.forward(embedding.forward(input.ids(), pass), pass), input.labels(), pass);
                // The share makes losses of unequal micro-batches one mean.
                Tensor gradient = crossEntropy.backward((float) input.share(), pass);
                embedding.backward(head.backward(gradient, pass), pass);
            } while (!input.isLast());
            // @end
            assertTrue(parameters.all().stream().allMatch(Parameter::hasGradient));
        }
    }

    /** Sequences of ten tokens, 1 to 10, each its own label. */
    private static final class CountedSequences implements TokenSequences {
        private int left = 8;

        @Override
        public boolean advance() {
            return left-- > 0;
        }

        @Override
        public int length() {
            return 10;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            for (int i = 0; i < count; i++) {
                ids[start + i] = i + 1;
                labels[start + i] = i + 1;
            }
            return count;
        }

        @Override
        public int padding() {
            return 0;
        }

        @Override
        public void close() {}
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
