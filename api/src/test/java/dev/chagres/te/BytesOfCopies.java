package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TensorBytes;

/** Transposes, padding and offsets: nothing is computed but whole numbers. */
final class BytesOfCopies {
    private static final DType[] TYPES = {DType.FLOAT8_E4M3, DType.BFLOAT16, DType.FLOAT32};

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfCopies(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfCopies copies = new BytesOfCopies(computed);
        for (DType dtype : TYPES) {
            copies.transposes(dtype);
            copies.padding(dtype);
        }
        copies.offsets();
    }

    private Tensor drawn(DType dtype, int rows, int columns) {
        Tensor tensor = open.scope().tensor(dtype, rows, columns);
        byte[] bytes = new byte[Math.toIntExact(tensor.byteSize())];
        open.random().nextBytes(bytes);
        TensorBytes.write(tensor, bytes, open.stream());
        return tensor;
    }

    private void transposes(DType dtype) {
        int rows = dtype == DType.FLOAT8_E4M3 ? 129 : 33;
        int columns = dtype == DType.FLOAT8_E4M3 ? 272 : 127;
        computed.call("nvte_transpose", dtype, () -> {
            Tensor output = open.scope().tensor(dtype, columns, rows);
            Transpose.transpose(drawn(dtype, rows, columns), output, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
        computed.call("nvte_transpose_with_noop", dtype, () -> {
            Tensor output = drawn(dtype, 80, 48);
            Tensor flag = open.tensor(DType.FLOAT32, new double[] {1}, 1);
            transposeWithNoop(drawn(dtype, 48, 80), flag, output);
            computed.keep("on", ByteRule.EXACT, output);
            open.set(flag, 0);
            transposeWithNoop(drawn(dtype, 48, 80), flag, output);
            computed.keep("off", ByteRule.EXACT, output);
        });
        computed.call("nvte_swap_first_dims", dtype, () -> {
            Tensor output = open.scope().tensor(dtype, 17, 5, 48);
            Tensor input = open.scope().view(drawn(dtype, 5 * 17, 48), 0, 5, 17, 48);
            Transpose.swapFirstDims(input, output, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
    }

    private void transposeWithNoop(Tensor input, Tensor flag, Tensor output) {
        Status.te(
                TransformerEngine.te_transpose_with_noop(
                        input.handle(),
                        flag.handle(),
                        output.handle(),
                        open.stream().handle()),
                "te_transpose_with_noop");
    }

    private void padding(DType dtype) {
        int[] rows = {17, 0, 33, 16};
        computed.call("nvte_multi_padding", dtype, () -> {
            Tensor[] inputs = new Tensor[rows.length];
            Tensor[] outputs = new Tensor[rows.length];
            for (int i = 0; i < rows.length; i++) {
                inputs[i] = drawn(dtype, rows[i], 80);
                outputs[i] = drawn(dtype, rows[i] / 16 * 16 + 16, 80);
            }
            Padding.multiPadding(inputs, outputs, open.stream());
            keepAll(outputs);
        });
        computed.call("nvte_multi_unpadding", dtype, () -> {
            Tensor[] inputs = new Tensor[rows.length];
            Tensor[] outputs = new Tensor[rows.length];
            for (int i = 0; i < rows.length; i++) {
                inputs[i] = drawn(dtype, rows[i] / 16 * 16 + 16, 80);
                outputs[i] = drawn(dtype, rows[i], 80);
            }
            Padding.multiUnpadding(inputs, outputs, open.stream());
            keepAll(outputs);
        });
    }

    private void keepAll(Tensor... outputs) {
        for (int i = 0; i < outputs.length; i++) {
            computed.keep(Integer.toString(i), ByteRule.EXACT, outputs[i]);
        }
    }

    private void offsets() {
        long[] sizes = {3, 0, 17, 1L << 33, 5, 128, 1};
        computed.call("nvte_splits_to_offsets", "INT64", () -> {
            Tensor output = open.scope().tensor(DType.INT64, sizes.length + 1);
            SplitsToOffsets.splitsToOffsets(open.longs(sizes), output, 80, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
        computed.call("nvte_splits_to_offsets_2d", "INT32", () -> {
            Tensor output = open.scope().tensor(DType.INT64, 5);
            SplitsToOffsets.splitsToOffsets2d(
                    open.ints(3, 0, 17, 128), open.ints(80, 16, 1, 48), output, open.stream());
            computed.keep("output", ByteRule.EXACT, output);
        });
        computed.call("nvte_splits_to_offsets_multi", "INT64", () -> {
            Tensor[] outputs = {
                open.scope().tensor(DType.INT64, sizes.length + 1), open.scope().tensor(DType.INT64, sizes.length)
            };
            SplitsToOffsets.splitsToOffsetsMulti(open.longs(sizes), outputs, new long[] {1, 48}, open.stream());
            keepAll(outputs);
        });
    }
}
