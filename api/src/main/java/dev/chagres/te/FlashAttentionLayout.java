package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * Copies into the layouts that FlashAttention reads: queries, keys and values split or interleaved, heads moved before tokens, and rows
 * padded with zeros.
 *
 * <p>Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_prepare_flash_attn_*} and {@code nvte_multi_tensor_*} in TE's {@code fused_attn.h}.
 */
public final class FlashAttentionLayout {
    /** TE starts 32 threads per token, or a block per 1024 tokens in a grid's second dimension. */
    private static final int MOST_TOKENS = (1 << 26) - 1;

    private static final int MOST_HEADS = 65_535;
    private static final int HEAD_DIM = 128;
    private static final int WORD_BYTES = 4;
    private static final int VECTOR_BYTES = 16;

    private FlashAttentionLayout() {}

    /**
     * Enqueues {@code qkv[i B + b, s, head, c] = qkvi[s, b, head, i 128 + c]} for i of 0, 1 and 2, {@code nvte_prepare_flash_attn_fwd}.
     *
     * @param qkvi FLOAT16 or BFLOAT16 [S, B, h, 384], each head's query, key and value of 128 elements one after another, S B
     *     at most 67,108,863
     * @param qkv [3 B, S, h, 128], in the type of {@code qkvi}: queries, then keys, then values
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void prepareFlashAttnFwd(Tensor qkvi, Tensor qkv, Stream stream) {
        checkForward(qkvi, qkv, stream);
        if (qkvi.count() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_prepare_flash_attn_fwd(
                        FlashAttentionQueries.handle(qkvi, stream), qkv.handle(), stream.handle()),
                "te_prepare_flash_attn_fwd");
    }

    /**
     * Enqueues {@code qkv[s, b, head, i 128 + c]} = element {@code [b, s, head, c]} of q, k and v for i of 0, 1 and 2,
     * {@code nvte_prepare_flash_attn_bwd}: the reverse of {@link #prepareFlashAttnFwd}, for gradients.
     *
     * @param q FLOAT16 or BFLOAT16 [B, S, h, 128], S B at most 67,108,863
     * @param k like q
     * @param v like q
     * @param qkv [S, B, h, 384], in the type of q
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void prepareFlashAttnBwd(Tensor q, Tensor k, Tensor v, Tensor qkv, Stream stream) {
        checkBackward(q, k, v, qkv, stream);
        if (q.count() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_prepare_flash_attn_bwd(
                        q.handle(), k.handle(), v.handle(), qkv.handle(), stream.handle()),
                "te_prepare_flash_attn_bwd");
    }

    /**
     * Enqueues {@code output[b, head, s, c]} = element {@code [b, s, head, c]}, or {@code [s, b, head, c]}, of each input, and 0 for each c
     * beyond the input's D, {@code nvte_multi_tensor_transpose_to_bhsd}.
     *
     * @param inputs [B, S, H, D] or [S, B, H, D], as the format says, all of the same type and B. A row of D elements has a multiple of 4
     *     bytes
     * @param outputs one per input, [B, H, S, at least the input's D], in the type of the inputs. TE moves 16, 8 or 4 bytes at once, the
     *     largest of these that divides the input's row, and this must divide the output's row, too
     * @param originalFormat BSHD or SBHD
     * @throws IllegalArgumentException when numbers, shapes, types or devices do not fit, or an output shares memory
     */
    public static void multiTensorTransposeToBhsd(
            Tensor[] inputs, Tensor[] outputs, QkvFormat originalFormat, Stream stream) {
        checkTransposed(inputs, outputs, originalFormat, stream);
        HandleArrays handles = HandleArrays.of(stream, inputs.length);
        int count = nonEmpty(handles, inputs, outputs, stream);
        if (count == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_transpose_to_bhsd(
                        handles.first(), handles.second(), count, originalFormat.code(), stream.handle()),
                "te_multi_tensor_transpose_to_bhsd");
    }

    /**
     * Enqueues {@code output[m, k] = input[m, k]}, and 0 in the columns beyond the input's,
     * {@code nvte_multi_tensor_pad_last_dim}.
     *
     * @param inputs matrices [M, K], of different sizes and types if you like
     * @param outputs one per input, [M, at least K], in the type of its input; if it has more columns, its rows have a multiple of 4 bytes,
     *     and less than 4 GiB
     * @throws IllegalArgumentException when numbers, shapes, types or devices do not fit, or an output shares memory
     */
    public static void multiTensorPadLastDim(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        checkPadded(inputs, outputs, stream);
        HandleArrays handles = HandleArrays.of(stream, inputs.length);
        int count = nonEmpty(handles, inputs, outputs, stream);
        if (count == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_pad_last_dim(
                        handles.first(), handles.second(), count, stream.handle()),
                "te_multi_tensor_pad_last_dim");
    }

    /** Sets the handles of pairs whose input has elements, and returns their number; zeroes the outputs of the others. */
    private static int nonEmpty(HandleArrays handles, Tensor[] inputs, Tensor[] outputs, Stream stream) {
        int count = 0;
        for (int i = 0; i < inputs.length; i++) {
            if (inputs[i].count() != 0) {
                handles.set(count++, inputs[i].handle(), outputs[i].handle());
            } else if (outputs[i].count() != 0) {
                outputs[i].zero(stream);
            }
        }
        return count;
    }

    /**
     * A handle, one per device, that describes queries, keys and values [S, B, h, 384] by their address and the shape of the queries alone, [S,
     * B, h, 128]: TE reads all three, but asks for this shape.
     */
    private static final class FlashAttentionQueries implements AutoCloseable {
        private static final DeviceState.Attachment<FlashAttentionQueries> ATTACHMENT =
                new DeviceState.Attachment<>(FlashAttentionQueries::new);

        private final BasicTensor description;
        private final MemorySegment handle;
        private final long[] sizes = new long[4];

        private FlashAttentionQueries(DeviceState device) {
            description = device.basicTensor();
            handle = description.create();
        }

        /** Returns the handle for {@code qkvi}, until the next call. */
        static MemorySegment handle(Tensor qkvi, Stream stream) {
            FlashAttentionQueries queries = Inside.state(stream).get(ATTACHMENT);
            for (int i = 0; i < 3; i++) {
                queries.sizes[i] = qkvi.size(i);
            }
            queries.sizes[3] = qkvi.size(3) / 3;
            queries.description
                    .at(qkvi.address(), qkvi.dtype().code())
                    .shape(queries.sizes, 4)
                    .writeTo(queries.handle);
            return queries.handle;
        }

        @Override
        public void close() {
            TransformerEngine.te_destroy_tensor(handle);
        }
    }

    private static void checkForward(Tensor qkvi, Tensor qkv, Stream stream) {
        heads("qkvi", qkvi, "[S, B, h, ", 3 * HEAD_DIM, stream);
        Checks.on(stream, "qkv", qkv);
        boolean fits = qkv.dtype() == qkvi.dtype()
                && qkv.rank() == 4
                && qkv.size(0) == 3 * qkvi.size(1)
                && qkv.size(1) == qkvi.size(0)
                && qkv.size(2) == qkvi.size(2)
                && qkv.size(3) == HEAD_DIM;
        if (!fits) {
            throw new IllegalArgumentException("qkv: expected " + qkvi.dtype() + "[" + 3 * qkvi.size(1) + ", "
                    + qkvi.size(0) + ", " + qkvi.size(2) + ", " + HEAD_DIM + "], got " + Checks.describe(qkv));
        }
        Checks.aligned("qkv", qkv);
        Checks.written("qkv", qkv, "qkvi", qkvi);
    }

    private static void checkBackward(Tensor q, Tensor k, Tensor v, Tensor qkv, Stream stream) {
        heads("q", q, "[B, S, h, ", HEAD_DIM, stream);
        Checks.like(stream, "k", k, q);
        Checks.like(stream, "v", v, q);
        Checks.on(stream, "qkv", qkv);
        boolean fits = qkv.dtype() == q.dtype()
                && qkv.rank() == 4
                && qkv.size(0) == q.size(1)
                && qkv.size(1) == q.size(0)
                && qkv.size(2) == q.size(2)
                && qkv.size(3) == 3 * HEAD_DIM;
        if (!fits) {
            throw new IllegalArgumentException("qkv: expected " + q.dtype() + "[" + q.size(1) + ", " + q.size(0) + ", "
                    + q.size(2) + ", " + 3 * HEAD_DIM + "], got " + Checks.describe(qkv));
        }
        Checks.aligned("k", k);
        Checks.aligned("v", v);
        Checks.aligned("qkv", qkv);
        Checks.written("qkv", qkv, "q", q, "k", k);
        Checks.apart("qkv", qkv, "v", v);
    }

    private static void heads(String argument, Tensor tensor, String sizes, int last, Stream stream) {
        Checks.on(stream, argument, tensor);
        boolean fits = (tensor.dtype() == DType.FLOAT16 || tensor.dtype() == DType.BFLOAT16)
                && tensor.rank() == 4
                && tensor.size(0) <= MOST_TOKENS
                && tensor.size(1) <= MOST_TOKENS
                && tensor.size(0) * tensor.size(1) <= MOST_TOKENS
                && tensor.size(2) <= MOST_HEADS
                && tensor.size(3) == last;
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected FLOAT16 or BFLOAT16" + sizes + last
                    + "] with S B at most " + MOST_TOKENS + " and h at most " + MOST_HEADS + ", got "
                    + Checks.describe(tensor));
        }
        Checks.aligned(argument, tensor);
    }

    private static void checkTransposed(Tensor[] inputs, Tensor[] outputs, QkvFormat format, Stream stream) {
        Padding.checkNumbers(inputs, outputs, stream);
        if (Checks.given("originalFormat", format) == QkvFormat.THD) {
            throw new IllegalArgumentException("originalFormat: expected BSHD or SBHD, got THD");
        }
        int batch = format == QkvFormat.BSHD ? 0 : 1;
        for (int i = 0; i < inputs.length; i++) {
            Checks.on(stream, "input", inputs[i]);
            Checks.on(stream, "output", outputs[i]);
            transposedInput(inputs, i, batch, format);
            transposedOutput(inputs[i], outputs[i], i, batch);
        }
        Padding.checkApart(inputs, outputs);
    }

    private static void transposedInput(Tensor[] inputs, int i, int batch, QkvFormat format) {
        Tensor input = inputs[i];
        Checks.withCode(i, "input", input);
        boolean fits = input.rank() == 4
                && input.dtype() == inputs[0].dtype()
                && input.size(batch) == inputs[0].size(batch)
                && input.size(1 - batch) <= MOST_TOKENS
                && Math.multiplyHigh(input.size(batch), input.size(2)) == 0
                && input.size(batch) * input.size(2) <= Integer.MAX_VALUE
                && input.size(3) * input.dtype().byteSize() % WORD_BYTES == 0;
        if (!fits) {
            throw new IllegalArgumentException("pair " + i + ", input: expected " + format.shape() + " of "
                    + inputs[0].dtype() + " and the B of the first, S at most " + MOST_TOKENS + ", B h at most "
                    + Integer.MAX_VALUE + ", d a multiple of " + WORD_BYTES + " bytes, got "
                    + Checks.describe(input));
        }
        Checks.aligned("input", input);
    }

    private static void transposedOutput(Tensor input, Tensor output, int i, int batch) {
        long moved = Math.min(
                VECTOR_BYTES, Long.lowestOneBit(input.size(3) * input.dtype().byteSize()));
        boolean fits = output.rank() == 4
                && output.dtype() == input.dtype()
                && output.size(0) == input.size(batch)
                && output.size(1) == input.size(2)
                && output.size(2) == input.size(1 - batch)
                && output.size(3) >= input.size(3)
                && (moved == 0 || output.size(3) * output.dtype().byteSize() % moved == 0);
        if (!fits) {
            throw new IllegalArgumentException(
                    "pair " + i + ", output: expected " + input.dtype() + "[" + input.size(batch)
                            + ", " + input.size(2) + ", " + input.size(1 - batch) + ", at least " + input.size(3)
                            + " and a multiple of " + moved + " bytes], got " + Checks.describe(output));
        }
        Checks.aligned("output", output);
        Checks.writable("output", output);
    }

    private static void checkPadded(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        Padding.checkNumbers(inputs, outputs, stream);
        for (int i = 0; i < inputs.length; i++) {
            Checks.on(stream, "input", inputs[i]);
            Checks.on(stream, "output", outputs[i]);
            padded(inputs[i], outputs[i], i);
        }
        Padding.checkApart(inputs, outputs);
    }

    private static void padded(Tensor input, Tensor output, int i) {
        Checks.withCode(i, "input", input);
        if (input.rank() != 2) {
            throw new IllegalArgumentException(
                    "pair " + i + ", input: expected a matrix, got " + Checks.describe(input));
        }
        boolean fits = output.rank() == 2
                && output.dtype() == input.dtype()
                && output.size(0) == input.size(0)
                && output.size(1) >= input.size(1);
        boolean wider = fits && output.size(1) > input.size(1);
        long row = fits ? output.size(1) * output.dtype().byteSize() : 0;
        if (!fits || (wider && (row % WORD_BYTES != 0 || row >= 1L << 32))) {
            throw new IllegalArgumentException("pair " + i + ", output: expected " + input.dtype() + "[" + input.size(0)
                    + ", at least " + input.size(1) + " and, if more, a multiple of " + WORD_BYTES
                    + " bytes below 4 GiB], got " + Checks.describe(output));
        }
        if (wider) {
            Checks.aligned("output", output);
        }
        Checks.writable("output", output);
    }
}
