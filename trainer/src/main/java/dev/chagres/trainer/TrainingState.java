package dev.chagres.trainer;

import dev.chagres.batch.DataPosition;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.PendingCheckpoint;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.optim.LossScaler;
import dev.chagres.optim.Optimizer;
import dev.chagres.parameter.State;
import dev.chagres.recipe.Quantizers;
import dev.chagres.trainer.Training.SaveProgress;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * What a run must save to go on with the same bits, and the checkpoint of it that is under way: weights, what the optimizer, the recipe and the
 * loss scaler keep, and which sequences were taken from the data. Of several ranks each calls the same method, and rank 0 has the file. The
 * methods are those of {@link Training} with the same names.
 *
 * <p>Threading: the device's thread.
 */
final class TrainingState implements AutoCloseable {
    private final RankShare ranks;
    private final Optimizer optimizer;
    /** Null where products are computed in the model's type. */
    private final @Nullable Quantizers quantizers;
    /** Null where the loss is not scaled. */
    private final @Nullable LossScaler lossScaler;
    /** Null where weights keep their names in checkpoints. */
    private final @Nullable ModelFiles files;
    /** Null before the first checkpoint in a folder. */
    private @Nullable PendingCheckpoint pending;

    private DataPosition position = DataPosition.START;

    TrainingState(
            RankShare ranks,
            Optimizer optimizer,
            @Nullable Quantizers quantizers,
            @Nullable LossScaler lossScaler,
            @Nullable ModelFiles files) {
        this.ranks = ranks;
        this.optimizer = optimizer;
        this.quantizers = quantizers;
        this.lossScaler = lossScaler;
        this.files = files;
    }

    private RunState weights() {
        return ranks.state(optimizer.parameters());
    }

    private RunState all() {
        RunState state = weights().optimizer(optimizer);
        if (quantizers != null) {
            state = state.with(quantizers);
        }
        if (files != null) {
            state = state.with(files);
        }
        if (lossScaler != null) {
            state = state.with(lossScaler);
        }
        return state.with(new State.Builder()
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

    /** Ranks have taken different sequences where each has batches of its own: a file tells none of them. */
    private RunState at(DataPosition newPosition) {
        position = ranks.hasOwnData() ? DataPosition.START : newPosition;
        return all();
    }

    void ensureSaves() {
        var _ = all().specs();
    }

    void save(Path file, DataPosition newPosition, Map<String, String> description) {
        SavingPlan.recorded(file, () -> {
            at(newPosition).save(file, description);
            return file;
        });
    }

    void reserveSaves(CheckpointFolder folder) {
        all().reserve(folder);
    }

    SaveProgress beginSave(
            CheckpointFolder folder, int step, DataPosition newPosition, Map<String, String> description) {
        return progress(() -> SavingPlan.recorded(folder, () -> {
            PendingCheckpoint begun = at(newPosition).saveInBackground(folder, step, description);
            pending = begun;
            return begun;
        }));
    }

    /** A checkpoint that cannot be written leaves the model as it is. */
    private static SaveProgress progress(Supplier<PendingCheckpoint> work) {
        try {
            return work.get().isOver() ? SaveProgress.PUBLISHED : SaveProgress.UNDER_WAY;
        } catch (SafetensorsException failure) {
            return new SaveProgress(true, failure);
        }
    }

    boolean isSaving() {
        return pending != null && pending.isBusy();
    }

    SaveProgress advanceSave() {
        PendingCheckpoint present = pending;
        return present == null
                ? SaveProgress.PUBLISHED
                : progress(() -> {
                    present.advance();
                    return present;
                });
    }

    void load(Path file) {
        all().load(file);
    }

    RecipeDifferences loadUnderOtherRecipe(Path file) {
        return all().loadUnderOtherRecipe(file);
    }

    void begin(Consumer<RunState> start) {
        start.accept(weights());
    }

    @Override
    public void close() {
        if (pending != null) {
            pending.close();
        }
    }
}
