package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.Output;

/**
 * Merges attention over some keys with attention of the same queries over other keys, as ring attention does.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_attention_merge} in {@code ops.h}; TE's {@code flash_attn_fwd_out_correction} and {@code
 * flash_attn_fwd_softmax_lse_correction}.
 */
public final class AttentionMerge {
    private AttentionMerge() {}

    /**
     * Enqueues, with L the merged log-sum-exp, l that of the part and {@code m = log(exp(L) + exp(l))}: {@code merged = exp(L - m) merged
     * + exp(l - m) partial}, row by row, and {@code L = m}. A query that sees none of the keys has {@code -infinity}; its output is
     * ignored. If both are {@code -infinity}, merged becomes 0.
     *
     * @param partial output over a part of the keys, [t, h, d], floating-point numbers
     * @param logSumExp of its scores, FLOAT32 [t, h, 1]
     * @param merged FLOAT32, like partial
     * @param mergedLogSumExp like logSumExp
     * @param output OVERWRITE: the first part; merged and its log-sum-exp are written without being read
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void attentionMerge(
            Tensor partial, Tensor logSumExp, Tensor merged, Tensor mergedLogSumExp, Output output, Stream stream) {
        Checks.given("output", output);
        Checks.floats(stream, "partial", partial);
        if (partial.rank() != 3 || partial.size(2) < 1) {
            throw new IllegalArgumentException(
                    "partial: expected [t, h, d], d at least 1, got " + Checks.describe(partial));
        }
        checkNumbers("logSumExp", logSumExp, partial, stream);
        checkNumbers("mergedLogSumExp", mergedLogSumExp, partial, stream);
        Checks.counted(stream, "merged", Checks.typed(stream, "merged", merged, DType.FLOAT32), partial);
        Checks.written("merged", merged, "partial", partial, "logSumExp", logSumExp);
        Checks.apart("merged", merged, "mergedLogSumExp", mergedLogSumExp);
        Checks.written("mergedLogSumExp", mergedLogSumExp, "partial", partial, "logSumExp", logSumExp);
        Status.ops(
                Ops.ops_attention_merge(
                        partial.address(),
                        logSumExp.address(),
                        merged.address(),
                        mergedLogSumExp.address(),
                        partial.size(0) * partial.size(1),
                        partial.size(2),
                        output == Output.OVERWRITE ? 1 : 0,
                        partial.dtype().code(),
                        stream.handle()),
                "ops_attention_merge");
    }

    private static void checkNumbers(String argument, Tensor numbers, Tensor partial, Stream stream) {
        Checks.typed(stream, argument, numbers, DType.FLOAT32);
        if (numbers.rank() != 3
                || numbers.size(0) != partial.size(0)
                || numbers.size(1) != partial.size(1)
                || numbers.size(2) != 1) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32 [" + partial.size(0) + ", "
                    + partial.size(1) + ", 1], got " + Checks.describe(numbers));
        }
    }
}
