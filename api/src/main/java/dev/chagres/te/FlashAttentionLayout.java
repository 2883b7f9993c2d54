package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;

/**
 * Copies into the layouts that FlashAttention reads: queries, keys and values taken apart and put together, heads before
 * tokens, and rows made longer by zeros.
 *
 * <p>What is written shares no byte with anything else.
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
     * Enqueues {@code output[b, head, s, c]} = element {@code [b, s, head, c]}, or {@code [s, b, head, c]}, of each input, and 0
     * for the c that it lacks, {@code nvte_multi_tensor_transpose_to_bhsd}.
     *
     * @param inputs [B, S, H, D] or [S, B, H, D], as the format says, of one type and one B. A row of D elements has a multiple
     *     of 4 bytes
     * @param outputs as many, [B, H, S, D of its own, at least that], in the type of the inputs. A row has a multiple of as
     *     many bytes as TE moves at once: 16, 8 or 4, what the input's row is a multiple of
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
     * Enqueues {@code output[m, k] = input[m, k]}, and 0 in the columns that input lacks,
     * {@code nvte_multi_tensor_pad_last_dim}.
     *
     * @param inputs matrices [M, K], M, K and type of their own
     * @param outputs as many, [M, at least K], in the type of its input; where there are more columns, a row has a multiple of 4
     *     bytes and less than 4 GiB
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

    /** Sets the handles of pairs whose input has elements, and returns how many there are; of others the output becomes 0. */
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
