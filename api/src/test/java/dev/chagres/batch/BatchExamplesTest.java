package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.te.QkvFormat;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The examples of batches, scores and layers in docs/passes.md. */
@Tag("L0")
@Tag("L1")
class BatchExamplesTest {
    private static final int HIDDEN = 64;
    private static final Path PAGE = Path.of("docs/passes.md");

    private final ModelPlan plan = new ModelPlan();
    private final TransformerLayer layer = new TransformerLayer(
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.none())), plan);

    private interface Body {
        void run(Stream stream, Scope scope, Pass pass);
    }

    private void run(Body body) {
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            assertTrue(parameters.count() > 0);
            body.run(device.stream(), scope, pass);
        }
    }

    private static Tensor input(Scope scope, long tokens, Stream stream) {
        Tensor x = scope.tensor(DType.BFLOAT16, tokens, HIDDEN);
        float[] values = new float[(int) x.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i);
        }
        x.set(stream, values);
        return x;
    }

    private void forwardAndBackward(Sequences sequences, int tokens, Pass pass, Stream stream) {
        assertEquals(tokens, sequences.tokens());
        pass.sequences(sequences);
        Tensor y = layer.forward(input(pass.scope(), tokens, stream), pass);
        assertEquals(y.shape(), layer.backward(y, pass).shape());
    }

    @Test
    void batches() {
        run((stream, scope, pass) -> {
            pass.begin();
            // @start region="batches"
            Sequences packed = Sequences.packed(pass.scope(), 20, 33); // x has 53 rows
            Sequences dense = Sequences.dense(pass.scope(), QkvFormat.BSHD, 2, 33); // 66 rows: batch, then length
            CuSeqlens lengths = CuSeqlens.ofLengths(pass.scope(), 20, 33);
            Sequences padded = Sequences.padded(QkvFormat.BSHD, lengths, 40); // 80 rows, of which 20 and 33 count
            // @end
            forwardAndBackward(packed, 53, pass, stream);
            forwardAndBackward(dense, 66, pass, stream);
            forwardAndBackward(padded, 80, pass, stream);
        });
    }

    @Test
    void alibi() {
        run((stream, scope, pass) -> {
            // @start region="alibi"
            layer.alibi(Alibi.of(scope, 4)); // once, of a scope that lives as long as the layer
            // @end
            pass.begin();
            forwardAndBackward(Sequences.packed(pass.scope(), 20, 33), 53, pass, stream);
        });
    }

    @Test
    void biasAndMask() {
        run((stream, scope, pass) -> {
            byte[] hidden = new byte[33 * 33];
            hidden[1] = 1;
            float[] values = new float[4 * 33 * 33];
            values[2] = 1;
            Tensor x = input(scope, 53, stream);
            // @start region="scores"
            SharedInput bias = new SharedInput("bias");
            layer.bias(bias); // once
            // and in each micro-batch:
            pass.begin();
            // [1 or batch, 1 or heads, longest query sequence, longest key sequence]; the mask has the same shape
            Tensor biases = pass.scope().tensor(DType.BFLOAT16, 1, 4, 33, 33);
            biases.set(stream, values);
            Tensor mask = pass.scope().tensor(DType.BYTE, 1, 1, 33, 33);
            mask.set(stream, hidden); // 1 where a query does not see a key
            pass.sequences(Sequences.packed(pass.scope(), 20, 33).withScoreMask(mask));
            bias.forward(biases, pass);
            Tensor y = layer.forward(x, pass); // x has 53 rows
            Tensor dx = layer.backward(y, pass); // as if the loss were the sum of y^2 / 2
            Tensor dbiases = bias.backward(pass);
            // @end
            assertEquals(x.shape(), dx.shape());
            float[] gradient = dbiases.toFloats(stream);
            assertEquals(values.length, gradient.length);
            assertEquals(0, gradient[1], "a key that is not seen");
            assertTrue(gradient[2] != 0, "a key that is seen");
        });
    }

    @Test
    void dropout() {
        // @start region="dropout"
        AttentionConfig attention = AttentionConfig.of(4, 16, AttentionMask.none())
                .withDropout(Dropout.of(0.1f)); // of the attention weights
        TransformerLayerConfig config = TransformerLayerConfig.encoder(64, attention)
                .withHiddenDropout(Dropout.of(0.1f)); // of each branch's output, before the residual sum
        // @end
        ModelPlan dropping = new ModelPlan();
        TransformerLayer dropper = new TransformerLayer(config, dropping);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, dropping, DType.FLOAT32, 42);
                Pass training = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            assertTrue(parameters.count() > 0);
            float[] first = output(dropper, training, 1);
            assertArrayEquals(first, output(dropper, training, 1), "the same seed");
            assertFalse(Arrays.equals(first, output(dropper, training, 2)), "another seed");
            assertArrayEquals(output(dropper, evaluation, 1), output(dropper, evaluation, 2), "an evaluation");
        }
    }

    private static float[] output(TransformerLayer dropper, Pass pass, long seed) {
        pass.begin();
        pass.seed(seed, 0, 0);
        pass.sequences(Sequences.packed(pass.scope(), 20));
        float[] values = new float[20 * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i);
        }
        Tensor x = pass.scope().tensor(DType.FLOAT32, 20, HIDDEN);
        x.set(pass.stream(), values);
        return dropper.forward(x, pass).toFloats(pass.stream());
    }

    // @start region="product"
    /** {@code y = x weight^T}, [T, in] to [T, out]. */
    static final class Product extends Layer {
        private static final class Input extends SavedContext {
            private final SavedTensor x = new SavedTensor("the product's input");
        }

        private final Parameter weight;
        private final ContextPool<Input> saved = new ContextPool<>(this, Input::new);

        Product(long in, long out, ModelPlan plan) {
            super(plan.name());
            weight = plan.declareProductWeight("weight", Initializer.normal(0.1f), out, in);
        }

        @Override
        protected void run(Tensor x, Tensor y, Pass pass) {
            Gemm.gemm(x, Transpose.NO, weight.weight(), Transpose.YES, y, Output.OVERWRITE, pass.stream());
            Input input = saved.push(pass);
            if (input != null) {
                input.x.set(x);
            }
        }

        @Override
        protected void gradient(Tensor dy, Tensor dx, Pass pass) {
            Tensor x = saved.pop(pass).x.get();
            Gemm.gemm(dy, Transpose.NO, weight.weight(), Transpose.NO, dx, Output.OVERWRITE, pass.stream());
            if (!weight.isFrozen()) {
                Output output = pass.nextGradient(weight); // before the call of weight.gradient()
                Gemm.gemm(dy, Transpose.YES, x, Transpose.NO, weight.gradient(), output, pass.stream());
            }
        }

        @Override
        public long outputColumns(long inputColumns) {
            return weight.shape().size(0);
        }

        @Override
        public boolean requiresGradient() {
            return !weight.isFrozen();
        }
    }
    // @end

    @Test
    void aWeightOfOnesOwn() {
        ModelPlan own = new ModelPlan();
        Layer product = new Product(3, 2, own.group("product"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, own, DType.FLOAT32, 42);
                Pass pass = Pass.training(device)) {
            Parameter weight = parameters.get("product.weight");
            weight.weight().set(device.stream(), 1f, 2f, 3f, 4f, 5f, 6f);
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 2, 3);
            x.set(device.stream(), 1f, -1f, 2f, 0.5f, 3f, -2f);
            Tensor y = product.forward(x, pass);
            assertArrayEquals(new float[] {5, 11, 0.5f, 5}, y.toFloats(device.stream()), 1e-3f);
            Tensor dx = product.backward(y, pass); // as if the loss were the sum of y^2 / 2
            assertArrayEquals(new float[] {49, 65, 81, 20.5f, 26, 31.5f}, dx.toFloats(device.stream()), 1e-3f);
            assertArrayEquals(
                    new float[] {5.25f, -3.5f, 9, 13.5f, 4, 12},
                    weight.gradient().toFloats(device.stream()),
                    1e-3f);
        }
    }

    /** Regions of this file stand in the page, letter by letter. */
    @Test
    void thePageShowsThem() throws IOException {
        Path root = Path.of("").toAbsolutePath().getParent();
        String page = Files.readString(root.resolve(PAGE));
        String own = Files.readString(
                root.resolve("api/src/test/java/dev/chagres/batch").resolve("BatchExamplesTest.java"));
        List<MatchResult> regions = Pattern.compile(" {4}// @start region=\"(\\w+)\"\n(.*?)\n *// @end", Pattern.DOTALL)
                .matcher(own)
                .results()
                .toList();
        assertEquals(5, regions.size());
        for (MatchResult region : regions) {
            String shown = region.group(2).stripIndent();
            assertTrue(
                    page.contains(shown), () -> PAGE + " does not show the region " + region.group(1) + ":\n" + shown);
        }
    }
}
