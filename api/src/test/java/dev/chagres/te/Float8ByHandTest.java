package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The example of docs/recipes-products.md: the three products of {@code y = x W^T} in FP8, against double precision. */
@Tag("L0")
@Tag("L1")
class Float8ByHandTest {
    private static final int TOKENS = 64;
    private static final int IN = 128;
    private static final int OUT = 256;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    // @start region="gradients"
    /** Computes {@code dx = dy W} and {@code dW = dy^T x}. */
    private static void gradients(Tensor x, Tensor w, Tensor dy, Tensor dx, Tensor dw, Scope scope, Stream stream) {
        QuantizedTensor x8 = quantized(x, DType.FLOAT8_E4M3, scope, stream);
        QuantizedTensor w8 = quantized(w, DType.FLOAT8_E4M3, scope, stream);
        QuantizedTensor dy8 = quantized(dy, DType.FLOAT8_E5M2, scope, stream); // gradients need range more than digits
        Gemm.gemm(dy8, Transpose.NO, w8, Transpose.NO, dx, Output.OVERWRITE, Accumulator.SPLIT, stream);
        Gemm.gemm(dy8, Transpose.YES, x8, Transpose.NO, dw, Output.OVERWRITE, Accumulator.SPLIT, stream);
    }

    /** Rounds with the scale that lets the largest element fill the type, and keeps the transpose, too. */
    private static QuantizedTensor quantized(Tensor plain, DType dtype, Scope scope, Stream stream) {
        QuantizedTensor tensor = scope.quantized(Scaling.TENSOR, dtype, plain.size(0), plain.size(1))
                .allocateRowwise(scope) // for forward, and for dy in dx
                .allocateColumnwise(scope) // for W in dx, and for both factors of dW
                .scale(scope.tensor(DType.FLOAT32, 1))
                .amax(scope.tensor(DType.FLOAT32, 1));
        RecipeUpdates.computeAmax(plain, tensor, QuantizationConfig.standard(), stream);
        RecipeUpdates.computeScaleFromAmax(tensor, QuantizationConfig.standard(), stream);
        Cast.quantize(plain, tensor, stream);
        return tensor;
    }
    // @end

    @Test
    void gradientsAreThoseOfDoublePrecision() {
        Scope scope = open.scope();
        Stream stream = open.stream();
        double[] x = waves(0.37, TOKENS * IN);
        double[] w = waves(0.61, OUT * IN);
        double[] dy = waves(0.83, TOKENS * OUT);
        Tensor dx = scope.tensor(DType.BFLOAT16, TOKENS, IN);
        Tensor dw = scope.tensor(DType.FLOAT32, OUT, IN);
        gradients(tensor(x, TOKENS, IN), tensor(w, OUT, IN), tensor(dy, TOKENS, OUT), dx, dw, scope, stream);

        double[] expectedDx = new double[TOKENS * IN];
        double[] expectedDw = new double[OUT * IN];
        for (int t = 0; t < TOKENS; t++) {
            for (int o = 0; o < OUT; o++) {
                for (int i = 0; i < IN; i++) {
                    expectedDx[t * IN + i] += dy[t * OUT + o] * w[o * IN + i];
                    expectedDw[o * IN + i] += dy[t * OUT + o] * x[t * IN + i];
                }
            }
        }
        // E5M2 rounds each factor by up to 1/8, either way, so that a sum of many products is off by less.
        assertNear("dx", expectedDx, dx.toFloats(stream));
        assertNear("dW", expectedDw, dw.toFloats(stream));
    }

    private static void assertNear(String what, double[] expected, float[] got) {
        double squares = 0;
        double differences = 0;
        for (int i = 0; i < expected.length; i++) {
            squares += expected[i] * expected[i];
            differences += (got[i] - expected[i]) * (got[i] - expected[i]);
        }
        double relative = Math.sqrt(differences / squares);
        assertTrue(relative < 0.1, () -> what + ": expected a relative difference below 0.1, got " + relative);
    }

    private static double[] waves(double pace, int count) {
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = Math.sin(pace * i * (1 + i / 97));
        }
        return values;
    }

    private static Tensor tensor(double[] values, int rows, int columns) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        Tensor tensor = open.scope().tensor(DType.BFLOAT16, rows, columns);
        tensor.set(open.stream(), floats);
        return tensor;
    }
}
