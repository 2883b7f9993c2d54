package dev.chagres.trainer;

import dev.chagres.io.SafetensorsException;
import dev.chagres.trainer.callback.Evaluation;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The callbacks of a run in their order: what they are told, which of them ask for a checkpoint, and whose turn it is there.
 *
 * <p>A steady step makes no Java object here.
 *
 * <p>Threading: confined to the thread that trains.
 */
final class Callbacks {
    /** Stands for the number of steps where the run ends. */
    static final int END = -1;

    private final TrainingRun run;
    private final List<Callback> all;
    /** Of each one that goes by a clock: whether the first rank says that it is due after the present step. */
    private boolean[] timely = {};

    private boolean atCheckpoint;
    /** The steps of the run at the last checkpoint. */
    private int checkpoint;
    /** How many have had their turn there, which may have failed. */
    private int called;
    /** The steps for which they were due there, or {@link #END}. */
    private int checkpointSteps;

    private boolean canReport = true;

    Callbacks(TrainingRun run, List<Callback> callbacks) {
        this.run = run;
        all = new ArrayList<>(callbacks);
    }

    void add(Callback callback) {
        all.add(callback);
    }

    void resume(Map<String, String> texts) {
        all.forEach(callback -> callback.onResume(texts));
    }

    void start() {
        all.forEach(callback -> callback.onStart(run));
    }

    void end() {
        all.forEach(callback -> callback.onEnd(run));
    }

    /** Returns what they keep in a state that is saved. */
    Map<String, String> texts() {
        Map<String, String> texts = new LinkedHashMap<>();
        all.forEach(callback -> texts.putAll(callback.texts()));
        return texts;
    }

    void saved(int step) {
        all.forEach(callback -> callback.onSaved(run, step));
    }

    /** Returns whether one of them says that the run goes on all the same. */
    boolean takeFailedSave(int step, SafetensorsException failure) {
        boolean taken = false;
        for (Callback callback : all) {
            taken |= callback.onSaveFailed(run, step, failure);
        }
        return taken;
    }

    /** Tells of a step; a report that cannot be written ends the run, and gets nothing further. */
    void made(StepMetrics step) {
        if (!canReport) {
            return;
        }
        try {
            for (int i = 0; i < all.size(); i++) {
                all.get(i).onStep(run, step);
            }
        } catch (UncheckedIOException e) {
            canReport = false;
            run.fail(e);
        }
    }

    /** Tells of an evaluation as {@link #made} does of a step. */
    void evaluated(Evaluation.Result result) {
        if (!canReport) {
            return;
        }
        try {
            all.forEach(callback -> callback.onEvaluation(run, result));
        } catch (UncheckedIOException e) {
            canReport = false;
            run.fail(e);
        }
    }

    /** Clocks differ between ranks: that of the first one counts. */
    void askClocks(int steps, Training model) {
        for (int i = 0; i < all.size(); i++) {
            Callback callback = all.get(i);
            if (callback.isTimed()) {
                if (timely.length < all.size()) {
                    timely = new boolean[all.size()];
                }
                timely[i] = model.ofFirstRank(callback.isDue(steps));
            }
        }
    }

    /** Returns whether one of them asks for a checkpoint after so many steps, or at the {@link #END}. */
    boolean areDue(int steps) {
        boolean due = false;
        for (int i = 0; i < all.size(); i++) {
            due |= isDue(i, steps);
        }
        return due;
    }

    private boolean isDue(int callback, int steps) {
        Callback one = all.get(callback);
        if (steps == END) {
            return one.isDueAtEnd();
        }
        return one.isTimed() ? callback < timely.length && timely[callback] : one.isDue(steps);
    }

    /** Calls those that are due after so many steps, or at the end, but those that were called with this state already. */
    void comeToCheckpoint(int steps) {
        int before = checkpoint == run.steps() ? called : 0;
        int stepsBefore = checkpointSteps;
        checkpoint = run.steps();
        checkpointSteps = steps;
        atCheckpoint = true;
        for (int i = 0; i < all.size(); i++) {
            called = i + 1;
            Callback callback = all.get(i);
            if (isDue(i, steps) && !(i < before && isDue(i, stepsBefore))) {
                callback.onCheckpoint(run);
            }
        }
        atCheckpoint = false;
    }

    /** Returns whether they have their turn, so that the state is whole. */
    boolean areAtCheckpoint() {
        return atCheckpoint;
    }
}
