package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.CrossEntropy.Factors;
import dev.chagres.ops.VocabularyCrossEntropy;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * Which columns of the logits a tensor-parallel rank has, and the cross-entropy of those of all ranks.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Megatron-LM's {@code _VocabParallelCrossEntropy}.
 *
 * @param columns columns of this rank's logits
 */
record ClassSplit(TensorParallel ranks, long columns, VocabularyCrossEntropy own) {
    static ClassSplit of(TensorParallel ranks, long classes, long allColumns) {
        long begin = ranks.begin(allColumns, ranks.rank());
        long columns = ranks.begin(allColumns, ranks.rank() + 1) - begin;
        // A rank may have padding alone.
        long first = Math.min(begin, classes);
        return new ClassSplit(
                ranks, columns, new VocabularyCrossEntropy(first, Math.min(columns, classes - first), classes, 0));
    }

    ClassSplit withLabelSmoothing(float labelSmoothing) {
        return new ClassSplit(
                ranks,
                columns,
                new VocabularyCrossEntropy(own.first(), own.classes(), own.allClasses(), labelSmoothing));
    }

    /** Gives a hint if the labels are those of all ranks' tokens, but the logits those of this rank's. */
    void checkTokens(Tensor logits, Tensor labels) {
        if (labels.rank() == 1 && logits.size(0) > 0 && labels.size(0) == logits.size(0) * ranks.size()) {
            throw new IllegalArgumentException("logits: expected " + labels.size(0)
                    + " tokens, those of the labels, got "
                    + Checks.describe(logits) + ", this rank's part of them; put a TokenGather before the layer that"
                    + " computes them");
        }
    }

    /** Enqueues {@code ops.CrossEntropy.forward} over the ranks; all ranks get the same. */
    void forward(
            Tensor logits,
            Tensor labels,
            @Nullable Tensor divisor,
            Tensor logSumExp,
            @Nullable Tensor tokenLosses,
            Tensor loss,
            Tensor counted,
            Pass pass) {
        Stream stream = pass.stream();
        Tensor sums = pass.temporary().tensor(DType.FLOAT32, own.sumRows(), logits.size(0));
        own.maximum(logits, logSumExp, stream);
        ranks.max(logSumExp, stream);
        own.sums(logits, labels, logSumExp, sums, stream);
        ranks.sum(sums, stream);
        own.loss(logSumExp, sums, labels, divisor, tokenLosses, loss, counted, stream);
    }

    /** Enqueues the gradient of this rank's logits, in their place. */
    void backward(
            Tensor logits, Tensor labels, Tensor logSumExp, @Nullable Tensor divisor, Factors factors, Stream stream) {
        own.backward(logits, labels, logSumExp, divisor, factors, logits, stream);
    }

    @Override
    public String toString() {
        return own.classes() + " of " + own.allClasses() + " classes on " + ranks;
    }
}
