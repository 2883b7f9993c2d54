package dev.chagres.trainer;

import dev.chagres.io.SafetensorsException;
import dev.chagres.trainer.callback.Evaluation;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Follows a run, and may end it. Reports and saved files are callbacks, as are evaluation and early stopping.
 *
 * <p>Between two steps a run may come to a checkpoint: then all steps so far are reported, none is under way, and the state is whole, to be
 * saved or evaluated. A run comes to one where a callback says that it {@link #isDue}, and calls {@link #onCheckpoint} of each that does.
 *
 * <p>Threading: the thread that trains; of several ranks that are threads, the one that started them.
 */
public interface Callback {
    /** Returns one that tells {@code listener} of each step. */
    static Callback eachStep(Consumer<StepMetrics> listener) {
        return new Callback() {
            @Override
            public void onStep(TrainingRun run, StepMetrics step) {
                listener.accept(step);
            }
        };
    }

    /**
     * Returns one that writes each step and each evaluation into a file, as an object of a line of its own. Until the run ends, the file is
     * called {@code FILE.part}.
     *
     * @throws java.io.UncheckedIOException when the file cannot be made, or another run writes it
     */
    static Callback jsonLines(Path file) {
        return ReportWriter.callback(file);
    }

    /**
     * Hears of a step whose result is known; the next one may be under way.
     *
     * @param step filled again for later steps
     * @throws java.io.UncheckedIOException when it cannot be written down: then the run ends, and saves its state
     */
    default void onStep(TrainingRun run, StepMetrics step) {}

    /**
     * Returns whether the run shall come to a checkpoint though it goes on.
     *
     * @param steps that were made, those of earlier runs included
     */
    default boolean isDue(int steps) {
        return false;
    }

    /** Returns whether {@link #isDue} goes by a clock, so that of several processes what the first rank's says holds for all. */
    default boolean isTimed() {
        return false;
    }

    /** Returns whether the run shall come to a checkpoint at its end, also where a failure ends it that has left the state whole. */
    default boolean isDueAtEnd() {
        return false;
    }

    /** Saves or evaluates the state. */
    default void onCheckpoint(TrainingRun run) {}

    /** Hears that the checkpoint of a step is published; the run may be some steps further. */
    default void onSaved(TrainingRun run, int step) {}

    /**
     * Hears that the checkpoint of a step could not be written: nothing is published, and earlier ones stay.
     *
     * @return whether the run goes on all the same; it ends where no callback says so
     */
    default boolean onSaveFailed(TrainingRun run, int step, SafetensorsException failure) {
        return false;
    }

    /**
     * Hears of an evaluation, between two steps.
     *
     * @throws java.io.UncheckedIOException when it cannot be written down: then the run ends, and saves its state
     */
    default void onEvaluation(TrainingRun run, Evaluation.Result result) {}

    /** Returns what a saved state shall keep of this for a run that goes on from it, by keys of its own; here nothing. */
    default Map<String, String> texts() {
        return Map.of();
    }

    /**
     * Goes on with what an earlier run has kept, before the first step.
     *
     * @param texts of the state that the run begins with, by key; empty of a new run
     */
    default void onResume(Map<String, String> texts) {}

    /** Hears that the first step follows. */
    default void onStart(TrainingRun run) {}

    /** Hears that the run has ended, whatever ended it. */
    default void onEnd(TrainingRun run) {}
}
