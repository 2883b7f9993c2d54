package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TensorBytes;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code Padding} byte by byte, and what it refuses. */
@Tag("L0")
@Tag("L1")
class PaddingConformance {
    /** Rows, padded rows, columns. */
    private static final int[][] SIZES = {{1, 16, 1}, {3, 3, 5}, {0, 4, 7}, {17, 32, 64}, {33, 48, 127}, {16, 16, 256}};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor drawn(DType dtype, int rows, int columns) {
        Tensor tensor = open.scope().tensor(dtype, rows, columns);
        byte[] bytes = new byte[(int) tensor.byteSize()];
        open.random().nextBytes(bytes);
        TensorBytes.write(tensor, bytes, open.stream());
        return tensor;
    }

    @ParameterizedTest
    @EnumSource(
            mode = EnumSource.Mode.EXCLUDE,
            names = {"INT8", "UINT32", "UINT64", "FLOAT64"}) // NCCL's alone
    void addedAndTakenAway(DType dtype) {
        Tensor[] inputs = new Tensor[70];
        Tensor[] padded = new Tensor[inputs.length];
        Tensor[] back = new Tensor[inputs.length];
        for (int i = 0; i < inputs.length; i++) {
            int[] size = SIZES[i % SIZES.length];
            inputs[i] = drawn(dtype, size[0], size[2]);
            padded[i] = drawn(dtype, size[1], size[2]);
            back[i] = drawn(dtype, size[0], size[2]);
        }
        Padding.multiPadding(inputs, padded, open.stream());
        Padding.multiUnpadding(padded, back, open.stream());
        for (int i = 0; i < inputs.length; i++) {
            byte[] given = TensorBytes.read(inputs[i], open.stream());
            byte[] expected = Arrays.copyOf(given, (int) padded[i].byteSize());
            assertArrayEquals(expected, TensorBytes.read(padded[i], open.stream()), "padded " + i);
            assertArrayEquals(given, TensorBytes.read(back[i], open.stream()), "back " + i);
        }
    }

    @Test
    void nothingAndNoGarbage() {
        Padding.multiPadding(new Tensor[0], new Tensor[0], open.stream());
        Padding.multiUnpadding(new Tensor[0], new Tensor[0], open.stream());
        Tensor none = open.scope().tensor(DType.FLOAT32, 4, 0);
        Padding.multiPadding(
                new Tensor[] {none}, new Tensor[] {open.scope().tensor(DType.FLOAT32, 8, 0)}, open.stream());
        Padding.multiUnpadding(
                new Tensor[] {none}, new Tensor[] {open.scope().tensor(DType.FLOAT32, 0, 0)}, open.stream());
        Tensor[] inputs = {drawn(DType.FLOAT8_E4M3, 3, 32), drawn(DType.FLOAT8_E4M3, 5, 32)};
        Tensor[] outputs = {drawn(DType.FLOAT8_E4M3, 16, 32), drawn(DType.FLOAT8_E4M3, 16, 32)};
        Allocation.assertNone("padding", () -> {
            Padding.multiPadding(inputs, outputs, open.stream());
            Padding.multiUnpadding(outputs, inputs, open.stream());
        });
    }

    private static void refused(String text, Tensor[] inputs, Tensor... outputs) {
        assertThrown(IllegalArgumentException.class, text, () -> Padding.multiPadding(inputs, outputs, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = drawn(DType.BFLOAT16, 4, 8);
        Tensor y = drawn(DType.BFLOAT16, 16, 8);
        refused("outputs: expected 1, one per input, got 0", new Tensor[] {x});
        String foreign =
                "pair 0, input: expected elements of a type that Transformer Engine has, got UINT64[0, 8]; only"
                        + " copies and collectives take UINT64";
        Tensor none = open.scope().tensor(DType.UINT64, 0, 8);
        refused(foreign, new Tensor[] {none}, none);
        assertThrown(
                IllegalArgumentException.class,
                foreign,
                () -> Padding.multiUnpadding(new Tensor[] {none}, new Tensor[] {none}, open.stream()));
        refused("pair 0, output: expected at least 16 rows, as the input has, got BFLOAT16[4, 8]", new Tensor[] {y}, x);
        refused(
                "pair 0, output: expected BFLOAT16[M, 8], got FLOAT16[16, 8]",
                new Tensor[] {x},
                drawn(DType.FLOAT16, 16, 8));
        refused(
                "pair 1, input: expected a matrix of BFLOAT16, the type of the first, got FLOAT32[4, 8]",
                new Tensor[] {x, drawn(DType.FLOAT32, 4, 8)},
                y,
                y);
        refused(
                "output 0: expected memory of its own, got some of input 0's; it is written to while that is read or written",
                new Tensor[] {x},
                x);
        refused(
                "output 0: expected memory of its own, got some of output 1's; it is written to while that is read or written",
                new Tensor[] {x, x},
                y,
                y);
        assertThrown(
                IllegalArgumentException.class,
                "pair 0, output: expected at most 4 rows, as the input has, got BFLOAT16[16, 8]",
                () -> Padding.multiUnpadding(new Tensor[] {x}, new Tensor[] {y}, open.stream()));
        assertThrown(
                NullPointerException.class,
                "inputs: expected values, got null at 0",
                () -> Padding.multiPadding(new Tensor[1], new Tensor[] {y}, open.stream()));
    }
}
