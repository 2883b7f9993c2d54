package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.LossScale;

/**
 * Scales and histories as they were before the end of a step, which the device may skip, or a rank may repeat with its own amaxes.
 *
 * <p>Threading: the device's thread.
 */
final class SavedScales {
    private final Tensor scale;
    private final Tensor history;
    private final Tensor savedScale;
    private final Tensor savedHistory;
    /** The first row: the amaxes of the step. */
    private final Tensor savedNewest;

    /** Allocates a copy of both in {@code scope}. */
    SavedScales(Tensor scale, Tensor history, int places, Scope scope) {
        this.scale = scale;
        this.history = history;
        savedScale = scope.tensor(DType.FLOAT32, places);
        savedHistory = scope.tensor(DType.FLOAT32, history.size(0), places);
        savedNewest = scope.view(savedHistory, 0, places);
    }

    /** Enqueues copies of both before the step updates them, with the step's amaxes. */
    void save(Stream stream) {
        savedScale.copyFrom(stream, scale);
        savedHistory.copyFrom(stream, history);
    }

    /** Enqueues discarding the step's amaxes in the copies. */
    void discardNewest(Stream stream) {
        savedNewest.zero(stream);
    }

    /** Enqueues restoring both. */
    void restore(Stream stream) {
        scale.copyFrom(stream, savedScale);
        history.copyFrom(stream, savedHistory);
    }

    /** Enqueues restoring them if {@code skip} is 1. */
    void restore(Tensor skip, Stream stream) {
        LossScale.restore(skip, savedScale, scale, stream);
        LossScale.restore(skip, savedHistory, history, stream);
    }
}
