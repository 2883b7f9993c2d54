package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;

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
        FlashAttentionChecks.forward(qkvi, qkv, stream);
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
        FlashAttentionChecks.backward(q, k, v, qkv, stream);
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
        FlashAttentionChecks.transpose(inputs, outputs, originalFormat, stream);
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
        FlashAttentionChecks.pad(inputs, outputs, stream);
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
}
