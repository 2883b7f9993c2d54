package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what {@code Cast} refuses. */
@Tag("L0")
@Tag("L1")
class CastMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final String SHARED = "; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static QuantizedTensor bare(Scaling scaling) {
        return open.scope().quantized(scaling, DType.FLOAT8_E4M3, 16, 32);
    }

    private static QuantizedTensor full() {
        return Float8Matrix.empty(open, DType.FLOAT8_E4M3, 16, 32, 1);
    }

    private static void refused(String text, Tensor input, QuantizedTensor output) {
        assertThrown(ARGUMENT, text, () -> Cast.quantize(input, output, open.stream()));
    }

    @Test
    void shapesTypesAndParts() {
        Tensor x = of(DType.BFLOAT16, 16, 32);
        refused(
                "input: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got BFLOAT16[32]",
                of(DType.BFLOAT16, 32),
                full());
        refused(
                "input: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[16, 32]",
                of(DType.FLOAT8_E4M3, 16, 32),
                full());
        refused("output: expected [32, 16], got FLOAT8_E4M3[16, 32] TENSOR", of(DType.BFLOAT16, 32, 16), full());
        refused(
                "output: expected data, got FLOAT8_E4M3[16, 32] TENSOR without any part; set rowwise or columnwise data",
                x,
                bare(Scaling.TENSOR));
        refused(
                "output: expected rowwise data, for with TENSOR scaling columnwise data is made beside it, got"
                        + " FLOAT8_E4M3[16, 32] TENSOR without; set it by rowwise or allocateRowwise",
                x,
                bare(Scaling.TENSOR).allocateColumnwise(open.scope()));
        refused(
                "output: expected a scale, by which TENSOR scaling multiplies, got FLOAT8_E4M3[16, 32] TENSOR without; set it"
                        + " by scale",
                x,
                bare(Scaling.TENSOR).allocateRowwise(open.scope()));
        QuantizedTensor two = full().columnwise(of(DType.FLOAT8_E4M3, 32, 16), of(DType.FLOAT32, 1));
        refused(
                "output: expected one scale inverse for both copies, as TENSOR scaling has one scale, got two; give columnwise"
                        + " the one that rowwise has",
                x,
                two);
    }

    @Test
    void sharedMemory() {
        Tensor buffer = of(DType.BFLOAT16, 16 * 32 + 256);
        Tensor x = open.scope().view(buffer, 0, 16, 32);
        Tensor inside = matrix(open.scope().reinterpret(buffer, DType.FLOAT8_E4M3, 512, 512));
        refused(
                "output: expected memory of its own, got some of input's in its rowwise data" + SHARED,
                x,
                bare(Scaling.TENSOR).rowwise(inside, of(DType.FLOAT32, 1)).scale(of(DType.FLOAT32, 1)));
        QuantizedTensor scaled = full();
        refused(
                "output: expected parts that share no memory, got scale and amax that do",
                of(DType.BFLOAT16, 16, 32),
                scaled.amax(scaled.scale()));
        QuantizedTensor flagged = full();
        QuantizationConfig config = QuantizationConfig.standard().withNoop(flagged.amax());
        assertThrown(
                ARGUMENT,
                "output: expected memory of its own, got some of noop's in its amax" + SHARED,
                () -> Cast.quantize(of(DType.BFLOAT16, 16, 32), flagged, config, open.stream()));
    }

    private static Tensor matrix(Tensor vector) {
        return open.scope().view(vector, 0, 16, 32);
    }

    @Test
    void alignment() {
        Tensor buffer = of(DType.BFLOAT16, 16 * 32 + 8);
        refused(
                "input: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view that"
                        + " does not; copy it into a tensor",
                open.scope().view(buffer, 1, 16, 32),
                full());
    }

    @Test
    void configurations() {
        assertThrown(
                ARGUMENT,
                "amaxEpsilon: expected a number of at least 0, got -1.0",
                () -> QuantizationConfig.standard().withAmaxEpsilon(-1));
        assertThrown(
                ARGUMENT,
                "amaxEpsilon: expected a number of at least 0, got NaN",
                () -> QuantizationConfig.standard().withAmaxEpsilon(Float.NaN));
        QuantizationConfig two = QuantizationConfig.standard().withNoop(of(DType.FLOAT32, 2));
        assertThrown(
                ARGUMENT,
                "noop: expected FLOAT32[1], got FLOAT32[2]",
                () -> Cast.quantize(of(DType.BFLOAT16, 16, 32), full(), two, open.stream()));
    }

    @Test
    void dequantize() {
        Tensor y = of(DType.BFLOAT16, 16, 32);
        assertThrown(
                ARGUMENT,
                "input: expected scaling by TENSOR, for TE has no kernel that dequantizes blocks, got FLOAT8_E4M3[16, 32]"
                        + " BLOCK_1D",
                () -> Cast.dequantize(bare(Scaling.BLOCK_1D).allocateRowwise(open.scope()), y, open.stream()));
        assertThrown(
                ARGUMENT,
                "input: expected rowwise data, for that is what is dequantized, got FLOAT8_E4M3[16, 32] TENSOR without; set it"
                        + " by rowwise or allocateRowwise",
                () -> Cast.dequantize(bare(Scaling.TENSOR).allocateColumnwise(open.scope()), y, open.stream()));
        assertThrown(
                ARGUMENT,
                "output: expected [16, 32], got BFLOAT16[32, 16]",
                () -> Cast.dequantize(full(), of(DType.BFLOAT16, 32, 16), open.stream()));
        assertThrown(
                ARGUMENT,
                "output: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[16, 32]",
                () -> Cast.dequantize(full(), of(DType.FLOAT8_E4M3, 16, 32), open.stream()));
        Tensor buffer = of(DType.BFLOAT16, 16 * 32);
        Tensor inside = matrix(open.scope().reinterpret(buffer, DType.FLOAT8_E4M3, 512, 512));
        QuantizedTensor input = bare(Scaling.TENSOR).rowwise(inside, of(DType.FLOAT32, 1));
        assertThrown(
                ARGUMENT,
                "output: expected memory of its own, got some of input's" + SHARED,
                () -> Cast.dequantize(input, open.scope().view(buffer, 0, 16, 32), open.stream()));
    }

    @Test
    void anotherDevice() {
        try (Device other = Device.open();
                Scope there = other.openScope()) {
            Tensor x = there.tensor(DType.BFLOAT16, 16, 32);
            refused(
                    "input: expected a tensor of device 0, got BFLOAT16[16, 32] of device 0, opened another time",
                    x,
                    full());
            QuantizedTensor q =
                    there.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 32).allocateRowwise(there);
            refused(
                    "output: expected a tensor of device 0, got FLOAT8_E4M3[16, 32] of device 0, opened another time",
                    of(DType.BFLOAT16, 16, 32),
                    q);
        }
    }
}
