package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Layer;
import dev.chagres.layer.Linear;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassProfile;
import dev.chagres.layer.ProfilerRanges;
import dev.chagres.layer.Sequential;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.Range;
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

/** The examples that the Javadoc of classes shows: each region here is one of them, and runs. */
@Tag("L0")
@Tag("L1")
class ExamplesTest {
    private static final int HIDDEN = 64;
    private static final Initializer WEIGHTS = Initializer.normal(0.02f);
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.none()));

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
    void device() {
        // @start region="device"
        try (Device first = Device.open(); // the first GPU, or the CPU reference
                Scope scope = first.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 2, 3);
            x.set(first.stream(), 1f, 2f, 3f, 4f, 5f, 6f);
            System.out.println(first.name() + " holds " + x);
        }
        // @end
        assertEquals(Provider.current(), device.provider());
    }

    @Test
    void scope() {
        Stream stream = device.stream();
        // @start region="scope"
        try (Scope scope = device.openScope()) {
            Tensor sum = scope.tensor(DType.FLOAT32, 4);
            sum.zero(stream);
            for (int i = 0; i < 10; i++) {
                try (Scope inner = scope.open()) { // its memory is handed out again in the next round
                    Tensor ones = inner.tensor(DType.FLOAT32, 4);
                    ones.set(stream, 1f, 1f, 1f, 1f);
                    Elementwise.add(ones, sum, sum, stream);
                }
            }
            System.out.println(sum.toFloats(stream)[0]); // 10.0
        }
        // @end
        assertEquals(0, device.openScope().usedBytes());
    }

    @Test
    void tensor() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope()) {
            // @start region="tensor"
            Tensor x = scope.tensor(DType.BFLOAT16, 2, 3); // its elements are whatever lay there
            x.set(stream, 1f, 2f, 3f, 4f, 5f, 6f); // rounded to BFLOAT16; waits
            Tensor secondRow = scope.view(x, 3, 1, 3); // the same memory, from element 3 on
            secondRow.zero(stream); // enqueued
            float[] values = x.toFloats(stream); // waits: 1, 2, 3, 0, 0, 0
            // @end
            assertArrayEquals(new float[] {1, 2, 3, 0, 0, 0}, values);
        }
    }

    @Test
    void plan() {
        // @start region="plan"
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(1000, 64, WEIGHTS, plan.group("embedding"));
        Layer layers = Sequential.of(2, i -> new TransformerLayer(ENCODER, plan.group("layers." + i)));
        Layer decoder = Linear.tied(embedding.weight(), plan.group("decoder")); // shares the embedding's table
        System.out.println(plan); // each group with its parameters and elements
        // @end
        assertEquals(4, plan.groups().size());
        assertTrue(layers.requiresGradient() && decoder.requiresGradient());
    }

    @Test
    void parameters() {
        ModelPlan plan = new ModelPlan();
        Layer layer = new Linear(64, 64, WEIGHTS, plan.child("dense"));
        // @start region="parameters"
        plan.parameters().getLast().freeze(); // before memory is taken: no gradient, no product for it
        try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42)) {
            System.out.println(parameters); // a table: name, shape, type, elements, bytes
            parameters.get("dense.weight").weight().set(device.stream(), new float[64 * 64]);
            parameters.changed(); // so that optimizers begin from what was written
        }
        // @end
        assertTrue(layer.requiresGradient());
        assertTrue(plan.parameters().getLast().isFrozen());
    }

    /** A model of two layers with everything that a step needs. */
    private final class Model implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Layer layers = Sequential.of(2, i -> new TransformerLayer(ENCODER, plan.group("layers." + i)));
        private final Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
        private final Scope inputs = device.openScope();
        private final Sequences sequences = Sequences.packed(inputs, 5, 3);
        private final Tensor x = inputs.tensor(DType.FLOAT32, 8, HIDDEN);

        private Model() {
            float[] values = new float[8 * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i);
            }
            x.set(device.stream(), values);
        }

        @Override
        public void close() {
            inputs.close();
            parameters.close();
        }
    }

    @Test
    void pass() {
        try (Model model = new Model();
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            Layer layers = model.layers;
            Sequences sequences = model.sequences;
            Parameters parameters = model.parameters;
            Tensor x = model.x;
            // @start region="pass"
            for (int step = 0; step < 3; step++) {
                pass.begin(sequences); // closes what the step before was handed
                Tensor y = layers.forward(x, pass);
                layers.backward(y, pass); // as if the loss were the sum of y^2 / 2
                parameters.nextStep(); // an optimizer's step does so
            }
            evaluation.begin(sequences); // the same layers without dropout; nothing is kept
            Tensor y = layers.forward(x, evaluation);
            // @end
            assertFalse(evaluation.isSaving());
            assertEquals(8 * HIDDEN, y.count());
            pass.begin(sequences);
            layers.forward(x, pass);
            // @start region="withoutSaving"
            Tensor looked;
            try (Pass.SavingSwitch off = pass.withoutSaving()) {
                looked = layers.forward(x, pass); // no backward call for this one
            }
            // @end
            assertArrayEquals(y.toFloats(device.stream()), looked.toFloats(device.stream()));
        }
    }

    // @start region="layer"
    /** {@code y = x + inner(x)}. */
    static final class Skip extends Layer {
        private final Layer inner;

        Skip(Layer inner) {
            super("skip round " + inner);
            this.inner = inner;
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            Tensor added = inner.forward(x, pass);
            Elementwise.add(added, x, y, pass.stream());
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            inner.backward(dy, dx, pass);
            Elementwise.add(dx, dy, dx, pass.stream());
        }

        @Override
        public boolean requiresGradient() {
            return inner.requiresGradient();
        }
    }
    // @end

    @Test
    void layer() {
        ModelPlan plan = new ModelPlan();
        Layer skip = new Skip(new Linear(4, 4, Initializer.zeros(), plan.child("inner")));
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 1, 4);
            x.set(device.stream(), 1f, 2f, 3f, 4f);
            Tensor y = skip.forward(x, pass);
            assertArrayEquals(new float[] {1, 2, 3, 4}, y.toFloats(device.stream()));
            assertArrayEquals(new float[] {1, 2, 3, 4}, skip.backward(y, pass).toFloats(device.stream()));
            assertTrue(parameters.get("inner.weight").hasGradient());
        }
    }

    @Test
    void transformerLayer() {
        ModelPlan plan = new ModelPlan();
        // @start region="transformerLayer"
        AttentionConfig attention = AttentionConfig.of(4, 16, AttentionMask.causal()); // 4 heads of 16 columns
        TransformerLayerConfig config =
                TransformerLayerConfig.encoder(64, attention).withHiddenDropout(Dropout.of(0.1f));
        Layer layers = Sequential.of(6, i -> new TransformerLayer(config, plan.group("layers." + i)));
        // @end
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 5, 3));
            Tensor x = pass.scope().tensor(DType.FLOAT32, 8, 64);
            x.zero(device.stream());
            assertEquals(8 * 64, layers.forward(x, pass).count());
            assertEquals(6 * 12, parameters.all().size());
        }
    }

    @Test
    void graph() {
        try (Model model = new Model();
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
        try (Model model = new Model();
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
        try (Model model = new Model();
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
        try (Model model = new Model();
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

    @Test
    void range() {
        try (Model model = new Model()) {
            Tensor x = model.x;
            // @start region="range"
            try (Range clearing = new Range("clear the input")) {
                clearing.push();
                x.zero(device.stream());
                Range.pop();
            }
            // @end
            assertEquals(0, x.toFloats(device.stream())[0]);
        }
    }
}
