package dev.chagres.trainer;

import dev.chagres.batch.DataPosition;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.PendingCheckpoint;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.parameter.State;
import java.nio.file.Path;
import java.util.Map;

/**
 * What a run must save to go on with the same bits: weights, what the optimizer, the recipe and the loss scaler keep, and which
 * sequences were taken from the data. Of several ranks each calls the same method, and rank 0 has the file.
 *
 * <p>Threading: the device's thread.
 */
final class TrainingState {
    private final RunState all;
    private DataPosition position = DataPosition.START;

    /** {@code model}: all but the place in the data. */
    TrainingState(RunState model) {
        all = model.with(new State.Builder()
                .number(
                        SavedRun.SEQUENCES,
                        () -> position.next(),
                        value -> position = new DataPosition(value, position.takenAhead()),
                        Long.MAX_VALUE)
                .number(
                        SavedRun.TAKEN_AHEAD,
                        () -> position.takenAhead(),
                        value -> position = new DataPosition(position.next(), value),
                        SavedRun.MOST_TAKEN_AHEAD)
                .build());
    }

    /**
     * Checks that it can be saved.
     *
     * @throws IllegalStateException when it cannot
     */
    void ensureSaves() {
        var _ = all.specs();
    }

    /**
     * Replaces {@code file}, or leaves it.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be written
     */
    void save(Path file, DataPosition newPosition, Map<String, String> description) {
        position = newPosition;
        all.save(file, description);
    }

    /** Takes the memory that {@link #begin} copies through. */
    void reserve(CheckpointFolder folder) {
        all.reserve(folder);
    }

    /**
     * Begins a checkpoint.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be written
     */
    PendingCheckpoint begin(
            CheckpointFolder folder, int step, DataPosition newPosition, Map<String, String> description) {
        position = newPosition;
        return all.saveInBackground(folder, step, description);
    }

    /**
     * Loads all of {@code file}, or nothing.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be read, or does not hold exactly this
     */
    void load(Path file) {
        all.load(file);
    }

    /**
     * Loads all of {@code file} but the scales and histories of another recipe, or nothing.
     *
     * @return what was not loaded
     * @throws dev.chagres.io.SafetensorsException when it cannot be read, or does not hold exactly this beside
     */
    RecipeDifferences loadUnderOtherRecipe(Path file) {
        return all.loadUnderOtherRecipe(file);
    }
}
