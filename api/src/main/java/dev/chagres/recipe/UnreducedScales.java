package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * Scales and histories as they were before the amaxes of a step were reduced over ranks, for a rank that repeats the end of the step with its
 * own amaxes.
 *
 * <p>Threading: the device's thread.
 */
final class UnreducedScales {
    private final Tensor scale;
    private final Tensor history;
    private final Tensor keptScale;
    private final Tensor keptHistory;
    private final Tensor skip;

    /** Allocates a copy of both in {@code scope}. */
    UnreducedScales(Tensor scale, Tensor history, int places, Scope scope) {
        this.scale = scale;
        this.history = history;
        keptScale = scope.tensor(DType.FLOAT32, places);
        keptHistory = scope.tensor(DType.FLOAT32, history.size(0), places);
        skip = scope.tensor(DType.INT32, 1);
    }

    /** Enqueues copies of both, with the step's amaxes, and of {@code skip}, which is 0 where no step can be skipped. */
    void keep(@Nullable Tensor skipped, Stream stream) {
        keptScale.copyFrom(stream, scale);
        keptHistory.copyFrom(stream, history);
        if (skipped == null) {
            skip.zero(stream);
        } else {
            skip.copyFrom(stream, skipped);
        }
    }

    /** Enqueues restoring both. */
    void restore(Stream stream) {
        scale.copyFrom(stream, keptScale);
        history.copyFrom(stream, keptHistory);
    }

    /** Returns INT32 [1]: 1 where the step was skipped. */
    Tensor skip() {
        return skip;
    }
}
