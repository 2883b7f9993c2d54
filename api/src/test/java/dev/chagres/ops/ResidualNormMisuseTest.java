package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.NormFunction.Kind;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.Output;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code ResidualNorm} refuses, and that its calls make no garbage. */
@Tag("L0")
@Tag("L1")
class ResidualNormMisuseTest {
    private static final float EPSILON = 1e-5f;
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    /** The arguments of forward, each of which a test replaces by a wrong one. */
    private static final class Arguments {
        private Tensor x = of(DType.FLOAT32, 3, 8);
        private Tensor residual = of(DType.FLOAT32, 3, 8);
        private Tensor gamma = of(DType.FLOAT32, 8);
        private Tensor beta = of(DType.FLOAT32, 8);
        private NormFunction norm = new NormFunction(Kind.LAYER_NORM, Gamma.PLAIN, EPSILON);
        private QuantizedTensor quantized;
        private Tensor h = of(DType.FLOAT32, 3, 8);
        private Tensor y = of(DType.FLOAT32, 3, 8);
        private Tensor mean = of(DType.FLOAT32, 3);
        private Tensor inverse = of(DType.FLOAT32, 3);
        private Tensor dgamma = of(DType.FLOAT32, 8);
        private Tensor dbeta = of(DType.FLOAT32, 8);

        void refused(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new ResidualNorm(norm)
                            .parameters(gamma, beta)
                            .statistics(mean, inverse)
                            .sum(null, residual, h)
                            .forward(x, y, quantized, open.stream()));
        }

        void refusedBackward(String text) {
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> new ResidualNorm(norm)
                            .parameters(gamma, null)
                            .statistics(mean, inverse)
                            .gradients(dgamma, dbeta, Output.ADD)
                            .backward(x, h, residual, y, open.stream()));
        }
    }

    @Test
    void refusals() {
        Arguments narrow = new Arguments();
        narrow.x = of(DType.FLOAT32, 3, 6);
        narrow.refused(
                "x: expected rows of whole 16-byte packs, at most 16 KiB, got FLOAT32[3, 6]; call Elementwise.add and"
                        + " Normalization");
        Arguments gamma = new Arguments();
        gamma.gamma = of(DType.BFLOAT16, 8);
        gamma.refused("gamma: expected FLOAT32[8], got BFLOAT16[8]");
        gamma.refusedBackward("gamma: expected FLOAT32[8], got BFLOAT16[8]");
        assertThrown(
                IllegalArgumentException.class,
                "epsilon: expected a number above 0, got 0.0",
                () -> new NormFunction(Kind.LAYER_NORM, Gamma.PLAIN, 0));
        Arguments unaligned = new Arguments();
        unaligned.beta = open.scope().view(of(DType.FLOAT32, 9), 1, 8);
        unaligned.refused(
                "beta: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                        + " view that does not; copy it into a tensor");
        Arguments mean = new Arguments();
        mean.mean = of(DType.FLOAT32, 4);
        mean.refused("mean: expected FLOAT32[3], got FLOAT32[4]");
        mean.refusedBackward("mean: expected FLOAT32[3], got FLOAT32[4]");
        Arguments y = new Arguments();
        y.y = y.x;
        y.refused("y: expected memory of its own, got some of x" + SHARED);
        Arguments h = new Arguments();
        h.y = h.h;
        h.refused("y: expected memory of its own, got some of h" + SHARED);
        Arguments statistics = new Arguments();
        statistics.inverse = statistics.mean;
        statistics.refused("mean: expected memory of its own, got some of inverse" + SHARED);
        Arguments dgamma = new Arguments();
        dgamma.dgamma = of(DType.BFLOAT16, 8);
        dgamma.refusedBackward("dgamma: expected FLOAT32[8], got BFLOAT16[8]");
        Arguments dbeta = new Arguments();
        dbeta.dbeta = dbeta.dgamma;
        dbeta.refusedBackward("dgamma: expected memory of its own, got some of dbeta" + SHARED);
    }

    @Test
    void biases() {
        Arguments good = new Arguments();
        Tensor bias = of(DType.FLOAT32, 8);
        assertRefused("bias: expected FLOAT32[8], got FLOAT32[3]", good, of(DType.FLOAT32, 3), good.residual, good.h);
        assertRefused(
                "bias: expected null, for it is added to the sum with a residual, and there is none, got FLOAT32[8]",
                good,
                bias,
                null,
                null);
        Tensor row = open.scope().view(good.h, 0, 8);
        assertRefused("h: expected memory of its own, got some of bias" + SHARED, good, row, good.residual, good.h);
        Tensor y = open.scope().view(good.y, 0, 8);
        assertRefused("y: expected memory of its own, got some of bias" + SHARED, good, y, good.residual, good.h);
    }

    private static void assertRefused(String text, Arguments with, Tensor bias, Tensor residual, Tensor h) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new ResidualNorm(with.norm)
                        .parameters(with.gamma, with.beta)
                        .statistics(with.mean, with.inverse)
                        .sum(bias, residual, h)
                        .forward(with.x, with.y, null, open.stream()));
    }

    @Test
    void whatMustGoTogether() {
        Arguments rms = new Arguments();
        rms.norm = new NormFunction(Kind.RMS_NORM, Gamma.PLAIN, EPSILON);
        rms.refused("beta: expected null, for RMS norm has none, got FLOAT32[8]");
        rms.beta = null;
        rms.refused("mean: expected null, for RMS norm has none, got FLOAT32[3]");
        rms.refusedBackward("mean: expected null, for RMS norm has none, got FLOAT32[3]");
        rms.mean = null;
        rms.refusedBackward("dbeta: expected null, for RMS norm has none, got FLOAT32[8]");
        Arguments plain = new Arguments();
        plain.beta = null;
        plain.refused("beta: expected a tensor, for layer norm has one, got null");
        Arguments alone = new Arguments();
        alone.residual = null;
        alone.refused("h: expected null, for without a residual h is x, got FLOAT32[3, 8]");
        Arguments nowhere = new Arguments();
        nowhere.y = null;
        nowhere.refused("y: expected a place for the norm, got null for y and quantized alike");
    }

    @Test
    void quantizedRefusals() {
        Arguments in = new Arguments();
        in.quantized = open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E5M2, 3, 8);
        in.refused("quantized: expected FLOAT8_E4M3[3, 8] TENSOR, got QuantizedTensor FLOAT8_E5M2[3, 8] TENSOR");
        in.quantized = open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 3, 8);
        in.refused(
                "quantized: expected a multiple of 16 columns for FP8, got QuantizedTensor FLOAT8_E4M3[3, 8] TENSOR");
        in.x = of(DType.FLOAT32, 3, 16);
        in.gamma = of(DType.FLOAT32, 16);
        in.beta = of(DType.FLOAT32, 16);
        in.residual = of(DType.FLOAT32, 3, 16);
        in.h = of(DType.FLOAT32, 3, 16);
        in.y = of(DType.FLOAT32, 3, 16);
        in.quantized = open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 3, 16);
        in.refused(
                "quantized: expected data and a scale, got QuantizedTensor FLOAT8_E4M3[3, 16] TENSOR without; set them"
                        + " by allocateRowwise or allocateColumnwise, and scale");
        Tensor scale = of(DType.FLOAT32, 1);
        in.quantized.scale(scale).allocateColumnwise(open.scope());
        in.refused("quantized: expected FLOAT8_E4M3[16, 16] TENSOR, got QuantizedTensor FLOAT8_E4M3[3, 16] TENSOR");
        in.quantized = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 16)
                .scale(scale)
                .amax(scale)
                .allocateColumnwise(open.scope());
        in.refused("quantized: expected memory of its own, got some of scale" + SHARED);
        in.quantized = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 16)
                .scale(scale)
                .rowwise(of(DType.FLOAT8_E4M3, 16, 16), of(DType.FLOAT32, 1))
                .columnwise(of(DType.FLOAT8_E4M3, 16, 16), of(DType.FLOAT32, 1));
        in.refused(
                "quantized: expected one scale inverse for both copies, as TENSOR scaling has one scale, got two; give"
                        + " columnwise the one that rowwise has");
    }

    @Test
    void amaxAlone() {
        Arguments in = new Arguments();
        Tensor amax = of(DType.FLOAT32, 1);
        in.quantized =
                open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 4, 8).amax(amax);
        in.refused("quantized: expected [3, 8], got QuantizedTensor FLOAT8_E4M3[4, 8] TENSOR");
        in.quantized = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 3, 8)
                .amax(open.scope().view(in.y, 2, 1));
        in.refused("quantized: expected memory of its own, got some of y" + SHARED);
        in.quantized =
                open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 3, 8).amax(amax);
        in.y = null;
        in.refused("y: expected a place for the norm, got null for y, and in quantized no scale to cast by");
    }

    @Test
    void makesNoGarbage() {
        Arguments in = new Arguments();
        ResidualNorm norm = new ResidualNorm(in.norm);
        Allocation.assertNone("residual norm", () -> {
            norm.parameters(in.gamma, in.beta)
                    .statistics(in.mean, in.inverse)
                    .sum(null, in.residual, in.h)
                    .forward(in.x, in.y, null, open.stream());
            norm.parameters(in.gamma, null)
                    .statistics(in.mean, in.inverse)
                    .gradients(in.dgamma, in.dbeta, Output.OVERWRITE)
                    .backward(in.y, in.h, in.residual, in.residual, open.stream());
        });
    }
}
