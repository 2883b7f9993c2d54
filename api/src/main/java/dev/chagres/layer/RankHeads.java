package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.Columns;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.pass.Pass;

/**
 * Takes one rank's part of tensors that have elements for all heads. Tensor-parallel ranks have consecutive heads, which context-parallel
 * ranks that exchange heads split further.
 *
 * <p>Threading: the device's thread.
 *
 * @param tensor the ranks by which what is sliced is divided too; none where it is divided among them already
 * @param heads this rank's
 */
record RankHeads(TensorParallel tensor, ContextParallel context, long heads) {
    /** Returns whether ranks attend with all heads and their own queries. */
    boolean keepsHeads() {
        return context.isSplit() && !context.dividesHeads();
    }

    /** Returns how many heads all ranks have together. */
    long all() {
        return heads * parts() * tensor.size();
    }

    /** Returns this rank's first head. */
    long first() {
        return heads * part();
    }

    /** Returns this rank's number among those that have other heads. */
    private long part() {
        return tensor.rank() * parts() + (context.dividesHeads() ? context.rank() : 0);
    }

    /** Returns this rank's number among those that have other heads or other queries. */
    long drawer() {
        return tensor.rank() * (long) context.size() + context.rank();
    }

    private long parts() {
        return context.dividesHeads() ? context.size() : 1;
    }

    private boolean isSplit() {
        return all() != heads;
    }

    /** Returns the text for errors: how many heads are expected, and how many of them are this rank's. */
    String expected() {
        return isSplit() ? "all " + all() + " heads, of which this rank attends with " + heads : all() + " heads";
    }

    /** Returns a view of this rank's of {@code whole}, [h]. */
    Tensor ofVector(Tensor whole, Pass pass) {
        return isSplit() ? pass.kept().view(whole, first(), heads) : whole;
    }

    /** Returns a gradient of [h] whose other heads are 0. */
    Tensor wholeVector(Tensor own, Pass pass) {
        if (!isSplit()) {
            return own;
        }
        Tensor gradient = pass.temporary().tensor(own.dtype(), all());
        gradient.zero(pass.stream());
        pass.temporary().view(gradient, first(), heads).copyFrom(pass.stream(), own);
        return gradient;
    }

    /** Returns this rank's of {@code whole}, [a, 1 or h, S, S']; {@code whole} itself where all heads have one. */
    Tensor ofScores(Tensor whole, Pass pass) {
        if (!isSplit() || whole.size(1) == 1) {
            return whole;
        }
        Tensor own = pass.kept().tensor(whole.dtype(), whole.size(0), heads, whole.size(2), whole.size(3));
        Columns.copyColumns(
                matrix(whole, pass), first() * columns(own) / heads, matrix(own, pass), 0, columns(own), pass.stream());
        Inside.requireGradient(own, whole.requiresGradient());
        return own;
    }

    /**
     * Checks what is told of scores.
     *
     * @param whole [1 or B, 1 or h, S, S'], h of all heads, S and S' at least the longest sequences
     */
    void checkScores(String argument, Tensor whole, DType dtype, Sequences sequences, Stream stream) {
        Checks.on(stream, argument, whole);
        boolean fits = whole.dtype() == dtype
                && whole.rank() == 4
                && (whole.size(0) == 1 || whole.size(0) == sequences.batch())
                && (whole.size(1) == 1 || whole.size(1) == all())
                && whole.size(2) >= sequences.length()
                && whole.size(3) >= sequences.keys().length();
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + dtype + "[1 or " + sequences.batch()
                    + ", 1 or " + all() + ", " + sequences.length() + " or more, "
                    + sequences.keys().length() + " or more]" + (isSplit() ? " of " + expected() : "") + ", got "
                    + Checks.describe(whole) + mend());
        }
    }

    /** Returns the advice at the end of an error about a tensor that does not have all heads. */
    String mend() {
        return isSplit() ? "; pass it for all heads, as on a single rank" : "";
    }

    /**
     * Returns a gradient of [a, 1 or h, S, S'], summed over tensor-parallel ranks, which all have the whole input; of heads of other
     * context-parallel ranks it is 0.
     */
    Tensor wholeScores(Tensor own, Tensor whole, Pass pass) {
        Tensor gradient = own;
        if (own.size(1) != whole.size(1)) {
            gradient = pass.temporary().like(whole);
            gradient.zero(pass.stream());
            Columns.copyColumns(
                    matrix(own, pass),
                    0,
                    matrix(gradient, pass),
                    first() * columns(own) / heads,
                    columns(own),
                    pass.stream());
        }
        tensor.sum(gradient, pass.stream());
        return gradient;
    }

    /** Describes the dropout of kernels that count heads from 0, or empty. */
    String explainDropout() {
        long ranks = tensor.size() * (long) context.size();
        return ranks > 1 ? "; each of " + ranks + " ranks draws its own dropout" : "";
    }

    /** Describes how ranks sum the gradient of a bias, or empty. */
    String explainSum() {
        return tensor.isSplit()
                ? "; ncclAllReduce sums the bias's gradient over the " + tensor.size() + " tensor-parallel ranks"
                : "";
    }

    private static long columns(Tensor scores) {
        return scores.size(1) * scores.size(2) * scores.size(3);
    }

    private static Tensor matrix(Tensor scores, Pass pass) {
        return pass.temporary().view(scores, 0, scores.size(0), columns(scores));
    }
}
