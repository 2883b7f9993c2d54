package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
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
 */
final class ClassSplit {
    private final TensorParallel ranks;
    /** Classes of all ranks. */
    private final long classes;
    /** Columns of this rank's logits. */
    private final long columns;
    /** Index of this rank's first class; if it has none, the number of classes. */
    private final long first;

    ClassSplit(TensorParallel ranks, long classes, long allColumns) {
        this.ranks = ranks;
        this.classes = classes;
        long begin = ranks.begin(allColumns, ranks.rank());
        columns = ranks.begin(allColumns, ranks.rank() + 1) - begin;
        first = Math.min(begin, classes);
    }

    long columns() {
        return columns;
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

    /** Returns how many of the columns are classes. */
    private long own() {
        return Math.min(columns, classes - first);
    }

    /** Enqueues {@code ops.CrossEntropy.forward} over the ranks; all ranks get the same. */
    void forward(
            Tensor logits,
            Tensor labels,
            float labelSmoothing,
            @Nullable Tensor divisor,
            Tensor logSumExp,
            @Nullable Tensor tokenLosses,
            Tensor loss,
            Tensor counted,
            Pass pass) {
        Stream stream = pass.stream();
        Scope temporary = pass.temporary();
        long tokens = logits.size(0);
        Tensor maximum = temporary.tensor(DType.FLOAT32, tokens);
        Tensor sums = temporary.tensor(DType.FLOAT32, VocabularyCrossEntropy.sumRows(labelSmoothing), tokens);
        VocabularyCrossEntropy.maximum(logits, own(), maximum, stream);
        ranks.max(maximum, stream);
        VocabularyCrossEntropy.sums(logits, labels, first, own(), labelSmoothing, maximum, sums, stream);
        ranks.sum(sums, stream);
        VocabularyCrossEntropy.loss(
                maximum, sums, labels, classes, labelSmoothing, divisor, logSumExp, tokenLosses, loss, counted, stream);
    }

    /** Enqueues the gradient of this rank's logits, in their place. */
    void backward(
            Tensor logits,
            Tensor labels,
            float labelSmoothing,
            Tensor logSumExp,
            @Nullable Tensor divisor,
            float factor,
            @Nullable Tensor lossScale,
            @Nullable Tensor tokenGradients,
            Stream stream) {
        VocabularyCrossEntropy.backward(
                logits,
                labels,
                first,
                own(),
                classes,
                labelSmoothing,
                logSumExp,
                divisor,
                factor,
                lossScale,
                tokenGradients,
                logits,
                stream);
    }

    @Override
    public String toString() {
        return own() + " of " + classes + " classes on " + ranks;
    }
}
