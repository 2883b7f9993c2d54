package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.te.ContextParallelChecks.TensorCells;
import java.lang.foreign.MemorySegment;

/**
 * Copies of packed tokens (THD) whose sequences are sharded among context-parallel ranks: halves of sequences, and tokens in the order of
 * ranks. With n ranks a sequence is cut into 2n chunks of equal length, and rank r holds chunks r and 2n - 1 - r.
 *
 * <p>Offsets are INT32 [B + 1], cumulative from 0, B from 1 to 12,287. Their contents are trusted: the length of each sequence must be a
 * multiple of what the method says, and none may end behind the tokens. A token has a multiple of 16 bytes. Outputs overlap no other
 * tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_cp_thd_*} and {@code nvte_thd_*} in TE's {@code fused_attn.h}.
 */
public final class ContextParallelThd {
    /** A half of each sequence. */
    public enum Half {
        /** The first half. */
        FIRST,
        /** The second half. */
        SECOND
    }

    private ContextParallelThd() {}

    /**
     * Enqueues a copy of one half of each sequence, {@code nvte_cp_thd_read_half_tensor}: the halves are packed one after another. Rows of
     * {@code half} behind the last one stay as they are.
     *
     * @param tensor floating-point numbers [T, h, d] or [n, T, h, d], such as keys and values, T even and at most 67,108,863
     * @param cuSeqlens INT32 [B + 1], lengths even
     * @param half like the tensor, with T / 2 tokens
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void readHalfTensor(Tensor tensor, Tensor cuSeqlens, Tensor half, Half which, Stream stream) {
        ContextParallelChecks.tokens("tensor", tensor, stream);
        ContextParallelChecks.offsets("cuSeqlens", cuSeqlens, stream);
        ContextParallelChecks.part("half", half, "tensor", tensor, 2, stream);
        Checks.given("which", which);
        Checks.written("half", half, "tensor", tensor, "cuSeqlens", cuSeqlens);
        if (half.count() == 0) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_cp_thd_read_half_tensor(
                        cells.cell(0, tensor),
                        cells.cell(1, cuSeqlens),
                        half.handle(),
                        which == Half.FIRST ? 0 : 1,
                        stream.handle()),
                "te_cp_thd_read_half_tensor");
    }

    /**
     * Enqueues {@code output[i]} = the index, in sequence order, of token i of rank {@code rank} of {@code worldSize},
     * {@code nvte_cp_thd_get_partitioned_indices}.
     *
     * @param cuSeqlens INT32 [B + 1], lengths multiples of {@code 2 worldSize} that end at {@code worldSize} times the output
     * @param output INT32 [T / worldSize], an even number of elements
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void getPartitionedIndices(Tensor cuSeqlens, Tensor output, int worldSize, int rank, Stream stream) {
        ContextParallelChecks.offsets("cuSeqlens", cuSeqlens, stream);
        ContextParallelChecks.indices(output, worldSize, stream);
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException("rank: expected at least 0 and below " + worldSize + ", got " + rank);
        }
        Checks.written("output", output, "cuSeqlens", cuSeqlens);
        if (output.count() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_cp_thd_get_partitioned_indices(
                        TensorCells.of(stream).cell(0, cuSeqlens),
                        output.handle(),
                        (int) output.count() * worldSize,
                        worldSize,
                        rank,
                        stream.handle()),
                "te_cp_thd_get_partitioned_indices");
    }

    /**
     * Enqueues a copy of all tokens in the order of ranks: those of rank 0, then those of rank 1 and so on,
     * {@code nvte_thd_sequence_order_to_cp_rank_order}.
     *
     * @param inp floating-point numbers [T, …], T a multiple of {@code 2 worldSize}, at most 67,108,863
     * @param cuSeqlens INT32 [B + 1], lengths multiples of {@code 2 worldSize} that end at T
     * @param out like {@code inp}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void sequenceOrderToCpRankOrder(
            Tensor inp, Tensor cuSeqlens, Tensor out, int worldSize, Stream stream) {
        reorder(
                TransformerEngine::te_thd_sequence_order_to_cp_rank_order,
                "te_thd_sequence_order_to_cp_rank_order",
                inp,
                cuSeqlens,
                out,
                worldSize,
                stream);
    }

    /**
     * Enqueues the reverse of {@link #sequenceOrderToCpRankOrder}, {@code nvte_thd_cp_rank_order_to_sequence_order}.
     *
     * @param inp floating-point numbers [T, …], T a multiple of {@code 2 worldSize}, at most 67,108,863
     * @param cuSeqlens INT32 [B + 1], lengths multiples of {@code 2 worldSize} that end at T
     * @param out like {@code inp}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void cpRankOrderToSequenceOrder(
            Tensor inp, Tensor cuSeqlens, Tensor out, int worldSize, Stream stream) {
        reorder(
                TransformerEngine::te_thd_cp_rank_order_to_sequence_order,
                "te_thd_cp_rank_order_to_sequence_order",
                inp,
                cuSeqlens,
                out,
                worldSize,
                stream);
    }

    private static void reorder(
            Reordering call, String function, Tensor inp, Tensor cuSeqlens, Tensor out, int worldSize, Stream stream) {
        ContextParallelChecks.reorder(inp, cuSeqlens, out, worldSize, stream);
        if (inp.count() == 0) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        int status = call.call(
                cells.cell(0, inp),
                cells.cell(1, cuSeqlens),
                out.handle(),
                worldSize,
                (int) inp.size(0),
                stream.handle());
        Status.te(status, function);
    }

    /**
     * Enqueues {@code out[t] = inp[t]} for the tokens t that belong to a sequence and are not padding,
     * {@code nvte_thd_copy_valid_tokens_from_per_split_to_rank_local}. Other rows of {@code out} stay as they are.
     *
     * @param inp floating-point numbers [T, …], T at most 67,108,863
     * @param cuSeqlensPadded INT32 [B + 1], where each sequence begins, B at most 6143; the first may begin behind token 0
     * @param cuSeqlens INT32 [B + 1], the cumulative lengths without padding
     * @param out like {@code inp}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public static void copyValidTokensFromPerSplitToRankLocal(
            Tensor inp, Tensor cuSeqlensPadded, Tensor cuSeqlens, Tensor out, Stream stream) {
        ContextParallelChecks.rows("inp", inp, stream);
        ContextParallelChecks.twoOffsets(cuSeqlensPadded, cuSeqlens, stream);
        Checks.like(stream, "out", out, inp);
        Checks.aligned("out", out);
        Checks.written("out", out, "inp", inp, "cuSeqlensPadded", cuSeqlensPadded);
        Checks.apart("out", out, "cuSeqlens", cuSeqlens);
        if (inp.count() == 0) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_thd_copy_valid_tokens_from_per_split_to_rank_local(
                        cells.cell(0, inp),
                        cells.cell(1, cuSeqlensPadded),
                        cells.cell(2, cuSeqlens),
                        out.handle(),
                        (int) inp.size(0),
                        stream.handle()),
                "te_thd_copy_valid_tokens_from_per_split_to_rank_local");
    }

    /** One of the two functions, which take the same arguments. */
    @FunctionalInterface
    private interface Reordering {
        int call(
                MemorySegment inp,
                MemorySegment cuSeqlens,
                MemorySegment out,
                int worldSize,
                int tokens,
                MemorySegment stream);
    }
}
