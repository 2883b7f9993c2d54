package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TensorBytes;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code FlashAttentionLayout} byte by byte, and what it refuses. */
@Tag("L0")
@Tag("L1")
class FlashAttentionLayoutConformance {
    private static final int LENGTH = 5;
    private static final int BATCH = 7;
    private static final int HEADS = 3;
    private static final int HEAD_BYTES = 256;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor drawn(DType dtype, long... sizes) {
        Tensor tensor = open.scope().tensor(dtype, Shape.of(sizes));
        byte[] bytes = new byte[(int) tensor.byteSize()];
        open.random().nextBytes(bytes);
        TensorBytes.write(tensor, bytes, open.stream());
        return tensor;
    }

    private static byte[] read(Tensor tensor) {
        return TensorBytes.read(tensor, open.stream());
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT16", "BFLOAT16"})
    void takenApart(DType dtype) {
        Tensor qkvi = drawn(dtype, LENGTH, BATCH, HEADS, 384);
        Tensor qkv = drawn(dtype, 3 * BATCH, LENGTH, HEADS, 128);
        FlashAttentionLayout.prepareFlashAttnFwd(qkvi, qkv, open.stream());
        byte[] given = read(qkvi);
        byte[] expected = new byte[given.length];
        for (int token = 0; token < LENGTH * BATCH; token++) {
            for (int i = 0; i < 3 * HEADS; i++) {
                int row = ((i % 3 * BATCH + token % BATCH) * LENGTH + token / BATCH) * HEADS + i / 3;
                System.arraycopy(given, (token * 3 * HEADS + i) * HEAD_BYTES, expected, row * HEAD_BYTES, HEAD_BYTES);
            }
        }
        assertArrayEquals(expected, read(qkv));
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT16", "BFLOAT16"})
    void putTogether(DType dtype) {
        Tensor[] parts = {
            drawn(dtype, BATCH, LENGTH, HEADS, 128),
            drawn(dtype, BATCH, LENGTH, HEADS, 128),
            drawn(dtype, BATCH, LENGTH, HEADS, 128)
        };
        Tensor qkv = drawn(dtype, LENGTH, BATCH, HEADS, 384);
        FlashAttentionLayout.prepareFlashAttnBwd(parts[0], parts[1], parts[2], qkv, open.stream());
        byte[] expected = new byte[(int) qkv.byteSize()];
        for (int i = 0; i < 3; i++) {
            byte[] given = read(parts[i]);
            for (int row = 0; row < BATCH * LENGTH * HEADS; row++) {
                int token = row / HEADS;
                int to = ((token % LENGTH * BATCH + token / LENGTH) * HEADS + row % HEADS) * 3 + i;
                System.arraycopy(given, row * HEAD_BYTES, expected, to * HEAD_BYTES, HEAD_BYTES);
            }
        }
        assertArrayEquals(expected, read(qkv));
    }

    /** Length, heads, bytes of a row and of an output's. More tensors than TE takes at once; a length beyond a block's. */
    private static final int[][] SIZES = {
        {1, 1, 16, 16}, {5, 3, 8, 24}, {0, 2, 8, 8}, {33, 2, 24, 40}, {2500, 1, 32, 48}, {7, 4, 128, 256}, {3, 2, 0, 16}
    };

    @ParameterizedTest
    @EnumSource(
            mode = EnumSource.Mode.EXCLUDE,
            names = {"INT8", "UINT32", "UINT64", "FLOAT64"}) // NCCL's alone
    void headsBeforeTokens(DType dtype) {
        for (QkvFormat format : new QkvFormat[] {QkvFormat.BSHD, QkvFormat.SBHD}) {
            boolean batchFirst = format == QkvFormat.BSHD;
            Tensor[] inputs = new Tensor[20];
            Tensor[] outputs = new Tensor[inputs.length];
            for (int i = 0; i < inputs.length; i++) {
                int[] n = SIZES[i % SIZES.length];
                int unit = dtype.byteSize();
                inputs[i] = batchFirst
                        ? drawn(dtype, 2, n[0], n[1], n[2] / unit)
                        : drawn(dtype, n[0], 2, n[1], n[2] / unit);
                outputs[i] = drawn(dtype, 2, n[1], n[0], n[3] / unit);
            }
            FlashAttentionLayout.multiTensorTransposeToBhsd(inputs, outputs, format, open.stream());
            for (int i = 0; i < inputs.length; i++) {
                int[] n = SIZES[i % SIZES.length];
                byte[] given = read(inputs[i]);
                byte[] expected = new byte[(int) outputs[i].byteSize()];
                for (int row = 0; row < 2 * n[1] * n[0]; row++) {
                    int s = row % n[0];
                    int b = row / n[0] / n[1];
                    int token = batchFirst ? b * n[0] + s : s * 2 + b;
                    int head = row / n[0] % n[1];
                    System.arraycopy(given, (token * n[1] + head) * n[2], expected, row * n[3], n[2]);
                }
                assertArrayEquals(expected, read(outputs[i]), format + " " + i);
            }
        }
    }

    /** Rows, elements of a row and of an output's. */
    private static final int[][] ROWS = {{3, 5, 8}, {1, 4, 4}, {0, 4, 8}, {17, 3, 3}, {300, 127, 128}, {2, 0, 4}};

    @ParameterizedTest
    @EnumSource(
            mode = EnumSource.Mode.EXCLUDE,
            names = {"INT8", "UINT32", "UINT64", "FLOAT64"}) // NCCL's alone
    void longerRows(DType dtype) {
        Tensor[] inputs = new Tensor[40];
        Tensor[] outputs = new Tensor[inputs.length];
        for (int i = 0; i < inputs.length; i++) {
            int[] n = ROWS[i % ROWS.length];
            inputs[i] = drawn(dtype, n[0], n[1]);
            outputs[i] = drawn(dtype, n[0], n[2]);
        }
        FlashAttentionLayout.multiTensorPadLastDim(inputs, outputs, open.stream());
        for (int i = 0; i < inputs.length; i++) {
            int[] n = ROWS[i % ROWS.length];
            int unit = dtype.byteSize();
            byte[] given = read(inputs[i]);
            byte[] expected = new byte[(int) outputs[i].byteSize()];
            for (int row = 0; row < n[0]; row++) {
                System.arraycopy(given, row * n[1] * unit, expected, row * n[2] * unit, n[1] * unit);
            }
            assertArrayEquals(expected, read(outputs[i]), "pair " + i);
        }
    }

    @Test
    void nothingAndNoGarbage() {
        Tensor none = drawn(DType.BFLOAT16, 0, 2, 1, 384);
        FlashAttentionLayout.prepareFlashAttnFwd(none, drawn(DType.BFLOAT16, 6, 0, 1, 128), open.stream());
        Tensor part = drawn(DType.BFLOAT16, 2, 0, 1, 128);
        FlashAttentionLayout.prepareFlashAttnBwd(part, part, part, none, open.stream());
        FlashAttentionLayout.multiTensorTransposeToBhsd(new Tensor[0], new Tensor[0], QkvFormat.BSHD, open.stream());
        FlashAttentionLayout.multiTensorPadLastDim(new Tensor[0], new Tensor[0], open.stream());
        Tensor qkvi = drawn(DType.BFLOAT16, 2, 1, 1, 384);
        Tensor qkv = drawn(DType.BFLOAT16, 3, 2, 1, 128);
        Tensor[] inputs = {drawn(DType.FLOAT8_E4M3, 2, 3, 1, 16)};
        Tensor[] outputs = {drawn(DType.FLOAT8_E4M3, 2, 1, 3, 32)};
        Tensor[] matrices = {drawn(DType.FLOAT8_E4M3, 3, 5)};
        Tensor[] padded = {drawn(DType.FLOAT8_E4M3, 3, 8)};
        Allocation.assertNone("layouts", () -> {
            FlashAttentionLayout.prepareFlashAttnFwd(qkvi, qkv, open.stream());
            FlashAttentionLayout.multiTensorTransposeToBhsd(inputs, outputs, QkvFormat.BSHD, open.stream());
            FlashAttentionLayout.multiTensorPadLastDim(matrices, padded, open.stream());
        });
    }

    private static void forward(String text, Tensor qkvi, Tensor qkv) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> FlashAttentionLayout.prepareFlashAttnFwd(qkvi, qkv, open.stream()));
    }

    @Test
    void refusedQueries() {
        Tensor qkvi = drawn(DType.BFLOAT16, 4, 2, 1, 384);
        Tensor qkv = drawn(DType.BFLOAT16, 6, 4, 1, 128);
        String limits = "] with S B at most 67108863 and h at most 65535, got ";
        forward(
                "qkvi: expected FLOAT16 or BFLOAT16[S, B, h, 384" + limits + "FLOAT32[4, 2, 1, 384]",
                drawn(DType.FLOAT32, 4, 2, 1, 384),
                qkv);
        forward(
                "qkvi: expected FLOAT16 or BFLOAT16[S, B, h, 384" + limits + "BFLOAT16[4, 2, 1, 128]",
                drawn(DType.BFLOAT16, 4, 2, 1, 128),
                qkv);
        forward("qkv: expected BFLOAT16[6, 4, 1, 128], got BFLOAT16[4, 2, 1, 384]", qkvi, qkvi);
        forward(
                "qkv: expected memory of its own, got some of qkvi's; it is written to while that is read or written",
                qkvi,
                open.scope().view(qkvi, 0, 6, 4, 1, 128));
        Tensor q = drawn(DType.BFLOAT16, 2, 4, 1, 128);
        assertThrown(
                IllegalArgumentException.class,
                "qkv: expected BFLOAT16[4, 2, 1, 384], got BFLOAT16[6, 4, 1, 128]",
                () -> FlashAttentionLayout.prepareFlashAttnBwd(q, q, q, qkv, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "q: expected FLOAT16 or BFLOAT16[B, S, h, 128" + limits + "BFLOAT16[4, 2, 1, 384]",
                () -> FlashAttentionLayout.prepareFlashAttnBwd(qkvi, q, q, qkv, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "v: expected BFLOAT16[2, 4, 1, 128], got BFLOAT16[4, 2, 1, 384]",
                () -> FlashAttentionLayout.prepareFlashAttnBwd(q, q, qkvi, qkv, open.stream()));
    }

    private static void transposed(String text, Tensor[] inputs, Tensor... outputs) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> FlashAttentionLayout.multiTensorTransposeToBhsd(inputs, outputs, QkvFormat.BSHD, open.stream()));
    }

    @Test
    void refusedTransposes() {
        Tensor x = drawn(DType.BFLOAT16, 2, 3, 1, 4);
        Tensor y = drawn(DType.BFLOAT16, 2, 1, 3, 4);
        transposed("outputs: expected 1, one per input, got 0", new Tensor[] {x});
        Tensor foreign = open.scope().tensor(DType.INT8, 2, 3, 1, 4);
        transposed(
                "pair 0, input: expected elements of a type that Transformer Engine has, got INT8[2, 3, 1, 4]; only"
                        + " copies and collectives take INT8",
                new Tensor[] {foreign},
                foreign);
        String wanted = "expected [B, S, h, d] of BFLOAT16 and the B of the first, S at most 67108863, B h at most"
                + " 2147483647, d a multiple of 4 bytes, got ";
        Tensor odd = drawn(DType.BFLOAT16, 2, 3, 1, 3);
        transposed("pair 0, input: " + wanted + "BFLOAT16[2, 3, 1, 3]", new Tensor[] {odd}, y);
        Tensor other = drawn(DType.BFLOAT16, 1, 3, 1, 4);
        transposed("pair 1, input: " + wanted + "BFLOAT16[1, 3, 1, 4]", new Tensor[] {x, other}, y, y);
        transposed(
                "pair 0, output: expected BFLOAT16[2, 1, 3, at least 4 and a multiple of 8 bytes], got BFLOAT16[2, 1, 3, 6]",
                new Tensor[] {x},
                drawn(DType.BFLOAT16, 2, 1, 3, 6));
        transposed(
                "output 0: expected memory of its own, got some of output 1's; it is written to while that is read or"
                        + " written",
                new Tensor[] {x, x},
                y,
                y);
        assertThrown(
                IllegalArgumentException.class,
                "originalFormat: expected BSHD or SBHD, got THD",
                () -> FlashAttentionLayout.multiTensorTransposeToBhsd(
                        new Tensor[] {x}, new Tensor[] {y}, QkvFormat.THD, open.stream()));
    }

    private static void padded(String text, Tensor input, Tensor output) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> FlashAttentionLayout.multiTensorPadLastDim(
                        new Tensor[] {input}, new Tensor[] {output}, open.stream()));
    }

    @Test
    void refusedRows() {
        Tensor x = drawn(DType.BFLOAT16, 2, 5);
        String wanted =
                "pair 0, output: expected BFLOAT16[2, at least 5 and, if more, a multiple of 4 bytes below 4 GiB], got ";
        padded(wanted + "BFLOAT16[2, 7]", x, drawn(DType.BFLOAT16, 2, 7));
        padded(wanted + "BFLOAT16[2, 4]", x, drawn(DType.BFLOAT16, 2, 4));
        padded(wanted + "FLOAT16[2, 6]", x, drawn(DType.FLOAT16, 2, 6));
        padded("pair 0, input: expected a matrix, got BFLOAT16[2]", drawn(DType.BFLOAT16, 2), x);
        Tensor none = open.scope().tensor(DType.UINT32, 0, 5);
        padded(
                "pair 0, input: expected elements of a type that Transformer Engine has, got UINT32[0, 5]; only"
                        + " copies and collectives take UINT32",
                none,
                none);
        padded(
                "output 0: expected memory of its own, got some of input 0's; it is written to while that is read or written",
                x,
                x);
    }
}
