package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Normalization.Gamma;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what bias gradients, activations and norms that quantize refuse. */
@Tag("L0")
@Tag("L1")
class FusedQuantizationMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final String SHARED = "; it is written to while that is read or written";
    private static final String WITHOUT =
            "got FLOAT8_E4M3[16, 32] TENSOR without; set it by columnwise or allocateColumnwise";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static QuantizedTensor both(long rows, long columns) {
        return Float8Matrix.empty(open, DType.FLOAT8_E4M3, rows, columns, 1);
    }

    private static QuantizedTensor blocks() {
        return open.scope()
                .quantized(Scaling.BLOCK_2D, DType.FLOAT8_E4M3, 16, 32)
                .allocateRowwise(open.scope());
    }

    private static void refusedDbias(String text, Tensor input, QuantizedTensor output, Tensor dbias) {
        assertThrown(ARGUMENT, text, () -> Cast.quantizeDbias(input, output, dbias, open.stream()));
    }

    @Test
    void dbias() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        Tensor dbias = of(DType.BFLOAT16, 32);
        refusedDbias(
                "output: expected columnwise data, for the kernel that sums a bias gradient makes both copies, "
                        + WITHOUT,
                x,
                Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 16, 32, 1),
                dbias);
        refusedDbias(
                "output: expected scaling by TENSOR, for TE has no kernel that sums a bias gradient beside blocks, got"
                        + " FLOAT8_E4M3[16, 32] BLOCK_2D",
                x,
                blocks(),
                dbias);
        refusedDbias(
                "input: expected a multiple of 8 rows and of 4 columns, which TE's kernel for both copies of BFLOAT16 takes at"
                        + " once, got BFLOAT16[17, 32]; pad it with zeros",
                of(DType.BFLOAT16, 17, 32),
                both(17, 32),
                dbias);
        refusedDbias(
                "input: expected a multiple of 8 rows and of 2 columns, which TE's kernel for both copies of FLOAT32 takes at"
                        + " once, got FLOAT32[16, 31]; pad it with zeros",
                of(DType.FLOAT32, 16, 31),
                both(16, 31),
                of(DType.FLOAT32, 31));
        refusedDbias("dbias: expected BFLOAT16[32], got FLOAT32[32]", x, both(16, 32), of(DType.FLOAT32, 32));
        refusedDbias(
                "dbias: expected memory of its own, got some of input's" + SHARED,
                x,
                both(16, 32),
                open.scope().view(x, 0, 32));
    }

    @Test
    void dact() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        Tensor dbias = of(DType.BFLOAT16, 32);
        assertThrown(
                ARGUMENT,
                "activation: expected GELU, SILU, RELU, QGELU or SRELU, whose gradients TE quantizes in one kernel, got SWIGLU;"
                        + " call its backward and then quantizeDbias",
                () -> Cast.quantizeDbiasDact(Activation.SWIGLU, x, x, both(16, 32), dbias, open.stream()));
        assertThrown(
                ARGUMENT,
                "actInput: expected BFLOAT16[16, 32], got BFLOAT16[16, 64]",
                () -> Cast.quantizeDbiasDact(
                        Activation.GELU, x, of(DType.BFLOAT16, 16, 64), both(16, 32), dbias, open.stream()));
        Tensor odd = of(DType.BFLOAT16, 18, 32);
        assertThrown(
                ARGUMENT,
                "input: expected a multiple of 4 rows and of 4 columns, which TE's kernel for both copies of BFLOAT16 takes at"
                        + " once, got BFLOAT16[18, 32]; pad it with zeros",
                () -> Cast.quantizeDbiasDact(Activation.GELU, odd, odd, both(18, 32), dbias, open.stream()));
        Tensor own = of(DType.BFLOAT16, 16, 32);
        assertThrown(
                ARGUMENT,
                "dbias: expected memory of its own, got some of actInput's" + SHARED,
                () -> Cast.quantizeDbiasDact(
                        Activation.GELU, x, own, both(16, 32), open.scope().view(own, 0, 32), open.stream()));
    }

    @Test
    void gatedGradients() {
        Tensor dy = of(DType.BFLOAT16, 16, 16);
        Tensor x = of(DType.BFLOAT16, 16, 32);
        refusedGated(
                "activation: expected GEGLU, QGEGLU, REGLU, SREGLU or SWIGLU, whose gradients TE quantizes and transposes in"
                        + " one kernel, got GLU; call its backward",
                Activation.GLU,
                dy,
                x,
                both(16, 32));
        refusedGated(
                "gatedActInput: expected BFLOAT16[T, 32], got BFLOAT16[16, 16]",
                Activation.SWIGLU,
                dy,
                of(DType.BFLOAT16, 16, 16),
                both(16, 32));
        refusedGated(
                "output: expected [16, 32], got FLOAT8_E4M3[32, 16] TENSOR", Activation.SWIGLU, dy, x, both(32, 16));
        refusedGated(
                "output: expected columnwise data, for the kernel makes both copies, " + WITHOUT,
                Activation.SWIGLU,
                dy,
                x,
                Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 16, 32, 1));
        refusedGated(
                "output: expected scaling by TENSOR, for the kernel computes no block scales, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                Activation.SWIGLU,
                dy,
                x,
                blocks());
        refusedGated(
                "input: expected a multiple of 4 rows and of 2 columns, which TE's kernel for both copies of BFLOAT16 takes at"
                        + " once, got BFLOAT16[18, 16]; pad it with zeros",
                Activation.SWIGLU,
                of(DType.BFLOAT16, 18, 16),
                of(DType.BFLOAT16, 18, 32),
                both(18, 32));
        Tensor buffer = of(DType.FLOAT32, 16 * 32);
        refusedGated(
                "output: expected memory of its own, got some of gatedActInput's in its amax" + SHARED,
                Activation.SWIGLU,
                of(DType.FLOAT32, 16, 16),
                open.scope().view(buffer, 0, 16, 32),
                both(16, 32).amax(open.scope().view(buffer, 5, 1)));
    }

    private static void refusedGated(String text, Activation activation, Tensor dy, Tensor x, QuantizedTensor output) {
        assertThrown(ARGUMENT, text, () -> Transpose.dactCastTranspose(activation, dy, x, output, open.stream()));
    }

    @Test
    void gradientsOfActivations() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        refusedGradient(
                "dx: expected scaling by TENSOR, for TE's activations compute no block scales, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                x,
                x,
                blocks());
        refusedGradient("dx: expected [16, 32], got FLOAT8_E4M3[32, 16] TENSOR", x, x, both(32, 16));
        refusedGradient(
                "dy: expected BFLOAT16[16, 32], got FLOAT32[16, 32]", of(DType.FLOAT32, 16, 32), x, both(16, 32));
        Tensor odd = of(DType.BFLOAT16, 6, 32);
        refusedGradient(
                "x: expected a multiple of 4 rows and of 2 columns, which TE's kernel for both copies of BFLOAT16 takes at once,"
                        + " got BFLOAT16[6, 32]; pad it with zeros",
                odd,
                odd,
                both(6, 32));
        Tensor buffer = of(DType.FLOAT32, 16 * 32);
        Tensor matrix = open.scope().view(buffer, 0, 16, 32);
        refusedGradient(
                "dx: expected memory of its own, got some of dy's in its amax" + SHARED,
                matrix,
                of(DType.FLOAT32, 16, 32),
                both(16, 32).amax(open.scope().view(buffer, 5, 1)));
        assertThrown(
                ARGUMENT,
                "dy: expected BFLOAT16[T, 16], got BFLOAT16[16, 32]",
                () -> ClampedSwiglu.standard().backward(x, x, both(16, 32), open.stream()));
    }

    @Test
    void amaxOfActivations() {
        Tensor x = of(DType.FLOAT32, 16, 32);
        Tensor y = of(DType.FLOAT32, 16, 32);
        refusedAmax("amax: expected FLOAT32[1], got FLOAT32[2]", x, y, of(DType.FLOAT32, 2));
        refusedAmax("amax: expected FLOAT32[1], got BFLOAT16[1]", x, y, of(DType.BFLOAT16, 1));
        refusedAmax(
                "amax: expected memory of its own, got some of y's" + SHARED,
                x,
                y,
                open.scope().view(y, 7, 1));
        refusedAmax(
                "amax: expected memory of its own, got some of x's" + SHARED,
                x,
                y,
                open.scope().view(x, 7, 1));
        Tensor vector = of(DType.FLOAT32, 8);
        refusedAmax(
                "y: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT32[8]",
                vector,
                vector,
                of(DType.FLOAT32, 1));
        assertThrown(
                ARGUMENT,
                "amax: expected memory of its own, got some of dy's" + SHARED,
                () -> Activation.RELU.backward(y, x, x, open.scope().view(y, 3, 1), open.stream()));
        Tensor half = of(DType.FLOAT32, 16, 16);
        assertThrown(
                ARGUMENT,
                "amax: expected memory of its own, got some of y's" + SHARED,
                () -> ClampedSwiglu.standard().forward(x, half, open.scope().view(half, 3, 1), open.stream()));
        assertThrown(
                ARGUMENT,
                "amax: expected memory of its own, got some of dy's" + SHARED,
                () -> ClampedSwiglu.standard().backward(half, x, y, open.scope().view(half, 3, 1), open.stream()));
    }

    private static void refusedAmax(String text, Tensor x, Tensor y, Tensor amax) {
        assertThrown(ARGUMENT, text, () -> Activation.RELU.forward(x, y, amax, open.stream()));
    }

    private static void refusedGradient(String text, Tensor dy, Tensor x, QuantizedTensor dx) {
        assertThrown(ARGUMENT, text, () -> Activation.RELU.backward(dy, x, dx, open.stream()));
    }

    @Test
    void activations() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        assertThrown(
                ARGUMENT,
                "y: expected scaling by TENSOR, for TE's activations compute no block scales, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                () -> Activation.GELU.forward(x, blocks(), open.stream()));
        assertThrown(
                ARGUMENT,
                "y: expected [16, 16], got FLOAT8_E4M3[16, 32] TENSOR",
                () -> Activation.SWIGLU.forward(x, both(16, 32), open.stream()));
        assertThrown(
                ARGUMENT,
                "x: expected a multiple of 8 rows and of 4 columns, which TE's kernel for both copies of BFLOAT16 takes at once,"
                        + " got BFLOAT16[3, 32]; pad it with zeros",
                () -> Activation.RELU.forward(of(DType.BFLOAT16, 3, 32), both(3, 32), open.stream()));
        assertThrown(
                ARGUMENT,
                "x: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got BFLOAT16[512]",
                () -> Activation.RELU.forward(of(DType.BFLOAT16, 512), both(16, 32), open.stream()));
        QuantizedTensor inside = both(16, 32);
        Tensor buffer = of(DType.FLOAT32, 16 * 32);
        inside.amax(open.scope().view(buffer, 5, 1));
        assertThrown(
                ARGUMENT,
                "y: expected memory of its own, got some of x's in its amax" + SHARED,
                () -> Activation.RELU.forward(open.scope().view(buffer, 0, 16, 32), inside, open.stream()));
    }

    private static void refusedNorm(String text, Tensor x, Tensor gamma, QuantizedTensor z, Tensor rsigma) {
        assertThrown(
                ARGUMENT,
                text,
                () -> new Normalization(1e-5f, Gamma.PLAIN).gamma(gamma).rmsnormFwd(x, z, rsigma, open.stream()));
    }

    @Test
    void norms() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        Tensor gamma = of(DType.BFLOAT16, 32);
        Tensor rsigma = of(DType.FLOAT32, 16);
        refusedNorm(
                "z: expected FLOAT8_E4M3, the one FP8 type that TE's norms write, got FLOAT8_E5M2[16, 32] TENSOR",
                x,
                gamma,
                Float8Matrix.empty(open, DType.FLOAT8_E5M2, 16, 32, 1),
                rsigma);
        refusedNorm(
                "z: expected scaling by TENSOR, for TE's norms compute no block scales, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                x,
                gamma,
                blocks(),
                rsigma);
        refusedNorm("z: expected [16, 32], got FLOAT8_E4M3[32, 16] TENSOR", x, gamma, both(32, 16), rsigma);
        QuantizedTensor shared = both(16, 32);
        refusedNorm(
                "z: expected memory of its own, got some of rsigma's in its amax" + SHARED,
                x,
                gamma,
                shared.amax(open.scope().view(rsigma, 0, 1)),
                rsigma);
        Tensor mu = of(DType.FLOAT32, 16);
        assertThrown(
                ARGUMENT,
                "z: expected memory of its own, got some of mu's in its amax" + SHARED,
                () -> new Normalization(1e-5f, Gamma.PLAIN)
                        .gamma(gamma)
                        .beta(of(DType.BFLOAT16, 32))
                        .layernormFwd(x, shared.amax(open.scope().view(mu, 3, 1)), mu, rsigma, open.stream()));
    }
}
