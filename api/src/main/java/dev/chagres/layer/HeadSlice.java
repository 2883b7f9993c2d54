package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.model.ContextParallel;
import dev.chagres.ops.Columns;

/**
 * What belongs to the heads that one of several context-parallel ranks attends with, out of what all heads have.
 *
 * <p>Threading: the device's thread.
 */
final class HeadSlice {
    private final ContextParallel ranks;
    /** This rank's. */
    private final long heads;

    HeadSlice(ContextParallel ranks, long heads) {
        this.ranks = ranks;
        this.heads = heads;
    }

    /** Returns whether ranks attend with all heads and their own queries. */
    boolean keepsHeads() {
        return ranks.isSplit() && !ranks.dividesHeads();
    }

    /** Returns how many heads all ranks have together. */
    long all() {
        return ranks.dividesHeads() ? heads * ranks.size() : heads;
    }

    /** Returns a view of this rank's of {@code whole}, [h]. */
    Tensor ofVector(Tensor whole, Pass pass) {
        return ranks.dividesHeads() ? pass.kept().view(whole, ranks.rank() * heads, heads) : whole;
    }

    /** Returns a gradient of [h] whose other heads are 0. */
    Tensor wholeVector(Tensor own, Pass pass) {
        if (!ranks.dividesHeads()) {
            return own;
        }
        Tensor gradient = pass.temporary().tensor(own.dtype(), all());
        gradient.zero(pass.stream());
        pass.temporary().view(gradient, ranks.rank() * heads, heads).copyFrom(pass.stream(), own);
        return gradient;
    }

    /** Returns this rank's of {@code whole}, [a, 1 or h, S, S']; {@code whole} itself where all heads have one. */
    Tensor ofScores(Tensor whole, Pass pass) {
        if (!ranks.dividesHeads() || whole.size(1) != all()) {
            return whole;
        }
        Tensor own = pass.kept().tensor(whole.dtype(), whole.size(0), heads, whole.size(2), whole.size(3));
        Columns.copyColumns(
                matrix(whole, pass), ranks.rank() * columns(own), matrix(own, pass), 0, columns(own), pass.stream());
        Inside.requireGradient(own, whole.requiresGradient());
        return own;
    }

    /** Returns a gradient of [a, h, S, S'] whose other heads are 0; {@code own} itself where all heads have one. */
    Tensor wholeScores(Tensor own, Tensor whole, Pass pass) {
        if (own.size(1) == whole.size(1)) {
            return own;
        }
        Tensor gradient = pass.temporary().like(whole);
        gradient.zero(pass.stream());
        Columns.copyColumns(
                matrix(own, pass), 0, matrix(gradient, pass), ranks.rank() * columns(own), columns(own), pass.stream());
        return gradient;
    }

    private static long columns(Tensor scores) {
        return scores.size(1) * scores.size(2) * scores.size(3);
    }

    private static Tensor matrix(Tensor scores, Pass pass) {
        return pass.temporary().view(scores, 0, scores.size(0), columns(scores));
    }
}
