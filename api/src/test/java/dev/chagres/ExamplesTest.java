package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.Range;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Cast;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The examples that the Javadoc of classes shows: each region here is one of them, and runs. */
@Tag("L0")
@Tag("L1")
class ExamplesTest {
    private static final int HIDDEN = 64;
    private static final Initializer WEIGHTS = Initializer.normal(0.02f);
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.none()));

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

    @Test
    void pass() {
        try (ExampleModel model = new ExampleModel(device);
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
    void quantizedTensor() {
        try (Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.BFLOAT16, 256, 128);
            x.zero(device.stream());
            Tensor scale = scope.tensor(DType.FLOAT32, 1);
            Tensor amax = scope.tensor(DType.FLOAT32, 1);
            scale.set(device.stream(), 64f);
            amax.zero(device.stream());
            // @start region="quantizedTensor"
            QuantizedTensor weight = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 256, 128)
                    .allocateRowwise(scope)
                    .allocateColumnwise(scope)
                    .scale(scale) // what numbers are multiplied by before they are rounded
                    .amax(amax); // receives the largest magnitude
            Cast.quantize(x, weight, device.stream());
            // @end
            assertEquals(0, amax.toFloats(device.stream())[0]);
        }
    }

    @Test
    void range() {
        try (ExampleModel model = new ExampleModel(device)) {
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

    @Test
    void quantizedWeights() {
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(ENCODER, plan.group("layers.0"));
        // @start region="quantizedWeights"
        try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42, WeightStorage.QUANTIZED);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            pass.autocast(Quantizers.allocate(parameters, Float8CurrentScaling.standard()));
            pass.begin(Sequences.packed(parameters.scope(), 16));
            Tensor x = pass.scope().tensor(DType.BFLOAT16, 16, HIDDEN);
            x.zero(device.stream());
            layer.backward(layer.forward(x, pass), pass);
            optimizer.step(1e-3f); // of the FP32 masters; the next pass casts them
        }
        // @end
        assertEquals(
                WeightStorage.QUANTIZED,
                plan.parameters().stream()
                        .filter(p -> p.name().endsWith("fc1.weight"))
                        .findFirst()
                        .orElseThrow()
                        .storage());
    }
}
