package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.LossScale;

/**
 * Scales and histories as they were before a step that the device may skip.
 *
 * <p>Threading: the device's thread.
 */
final class SavedScales {
    private final Tensor scale;
    private final Tensor history;
    private final Tensor savedScale;
    private final Tensor savedHistory;
    /** The first row: what the step has recorded, which goes with it. */
    private final Tensor savedNewest;

    /** Takes memory for a copy of both in {@code scope}. */
    SavedScales(Tensor scale, Tensor history, int places, Scope scope) {
        this.scale = scale;
        this.history = history;
        savedScale = scope.tensor(DType.FLOAT32, places);
        savedHistory = scope.tensor(DType.FLOAT32, history.size(0), places);
        savedNewest = scope.view(savedHistory, 0, places);
    }

    /** Enqueues copies of what they are before they follow the step, without what the step has recorded. */
    void save(Stream stream) {
        savedScale.copyFrom(stream, scale);
        savedHistory.copyFrom(stream, history);
        savedNewest.zero(stream);
    }

    /** Enqueues putting them back where {@code skip} is 1. */
    void restore(Tensor skip, Stream stream) {
        LossScale.restore(skip, savedScale, scale, stream);
        LossScale.restore(skip, savedHistory, history, stream);
    }
}
