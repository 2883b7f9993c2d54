package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.Nullable;

/**
 * Checks of {@link AttentionScores}, after those of the other tensors.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionScoreChecks {
    private AttentionScoreChecks() {}

    static void inputs(AttentionScores scores, AttentionTensors tensors, Stream stream) {
        if (!(scores.softcap() >= 0) || Float.isInfinite(scores.softcap())) {
            throw new IllegalArgumentException(
                    "softcap: expected 0, which is none, or a finite number above it, got " + scores.softcap());
        }
        Checks.given("alignment", scores.alignment());
        Checks.given("softmaxType", scores.softmaxType());
        slopes(scores.slopes(), tensors, stream);
        byScore("bias", scores.bias(), tensors.query().dtype(), tensors, stream);
        byScore("mask", scores.mask(), DType.BYTE, tensors, stream);
        if (scores.softmaxType() == SoftmaxType.LEARNABLE) {
            Tensor sinks = scores.sinks();
            if (sinks == null) {
                throw new IllegalStateException("sinks: expected FLOAT32[" + heads(tensors)
                        + "], for the softmax is LEARNABLE, got none; give them with softmax(LEARNABLE, sinks)");
            }
            Checks.vector(stream, "sinks", sinks, DType.FLOAT32, heads(tensors));
            tensors.checkRead("sinks", sinks);
        }
    }

    static void gradients(AttentionScores scores, AttentionTensors tensors, Stream stream) {
        Tensor bias = scores.bias();
        Tensor biasGradient = scores.biasGradient();
        if (biasGradient != null) {
            if (bias == null) {
                throw new IllegalArgumentException(
                        "biasGradient: expected none, for there is no bias, got " + Checks.describe(biasGradient));
            }
            tensors.checkApart("biasGradient", Checks.like(stream, "biasGradient", biasGradient, bias));
        }
        Tensor sinksGradient = scores.sinksGradient();
        if (sinksGradient != null) {
            if (scores.softmaxType() != SoftmaxType.LEARNABLE) {
                throw new IllegalArgumentException("sinksGradient: expected none, for the softmax is "
                        + scores.softmaxType() + ", got " + Checks.describe(sinksGradient));
            }
            Checks.vector(stream, "sinksGradient", sinksGradient, DType.FLOAT32, heads(tensors));
            tensors.checkApart("sinksGradient", sinksGradient);
        }
    }

    private static long heads(AttentionTensors tensors) {
        Tensor query = tensors.query();
        return query.size(query.rank() - 2);
    }

    private static void slopes(@Nullable Tensor slopes, AttentionTensors tensors, Stream stream) {
        if (slopes == null) {
            return;
        }
        Checks.on(stream, "slopes", slopes);
        long heads = heads(tensors);
        int rank = slopes.rank();
        boolean fits = slopes.dtype() == DType.FLOAT32
                && rank > 0
                && slopes.size(rank - 1) == heads
                && (rank == 1 || (rank == 2 && slopes.size(0) == tensors.sequences()));
        if (!fits) {
            throw new IllegalArgumentException("slopes: expected FLOAT32[" + heads + "] or FLOAT32["
                    + tensors.sequences() + ", " + heads + "], got " + Checks.describe(slopes));
        }
        tensors.checkRead("slopes", slopes);
    }

    private static void byScore(
            String argument, @Nullable Tensor tensor, DType dtype, AttentionTensors tensors, Stream stream) {
        if (tensor == null) {
            return;
        }
        Checks.on(stream, argument, tensor);
        boolean fits = tensor.dtype() == dtype
                && tensor.rank() == 4
                && isShared(tensor.size(0), tensors.sequences())
                && isShared(tensor.size(1), heads(tensors))
                && tensor.size(2) >= tensors.queryLength()
                && tensor.size(3) >= tensors.keyLength();
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + dtype + "[1 or " + tensors.sequences()
                    + ", 1 or " + heads(tensors) + ", " + tensors.queryLength() + " or more, " + tensors.keyLength()
                    + " or more], got " + Checks.describe(tensor));
        }
        tensors.checkRead(argument, tensor);
    }

    private static boolean isShared(long size, long all) {
        return size == 1 || size == all;
    }
}
