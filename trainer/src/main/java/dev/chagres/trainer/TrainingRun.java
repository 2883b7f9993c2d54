package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.Batches;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.StepResult;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.estimate.KernelTimes;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.io.SafetensorsException;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.trainer.callback.Evaluation;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The training loop: while one step runs, the next batch is uploaded and the step before is reported.
 *
 * <p>A steady step makes no Java object here.
 *
 * <p>Threading: confined to the thread that trains, but for {@link #stop}, which any thread may call.
 */
public final class TrainingRun {
    /** The learning rate of a step, counted from 0. */
    @FunctionalInterface
    interface LearningRate {
        /** Returns it. */
        float at(int step);
    }

    /** Halved so often, PyTorch's first loss scale of 65536 is 1/16: what is not finite then has another cause. */
    private static final int MOST_SKIPPED = 20;

    /** A step is reported while the next one runs, for which a third one's batch is uploaded already. */
    private static final int STEPS_IN_FLIGHT = 3;

    private final Training model;
    private final Batches batches;
    private final LearningRate learningRate;
    private final double peakFlops;
    private final Wording wording;
    private final Callbacks callbacks;
    private final StepMetrics[] metrics = new StepMetrics[STEPS_IN_FLIGHT];
    private final StepResult result = new StepResult();
    /** What of the data was taken after each of the steps in flight: the numbers of a {@link DataPosition}. */
    private final long[] next = new long[STEPS_IN_FLIGHT];

    private final long[] takenAhead = new long[STEPS_IN_FLIGHT];

    /** Steps of the run that this one goes on from. */
    private int first;

    /** Steps whose work was enqueued wholly. */
    private int made;

    private int unreported;
    /** The step of the checkpoint that is under way; 0 for none. */
    private int saving;
    /** What ends the run though its state is good: it is thrown once that is saved. */
    private @Nullable RuntimeException failure;

    /** Whether a step has made numbers that are not finite. */
    private boolean spoilt;

    private int skippedInARow;
    /** What is computed once more, as a share of the model's operations; NaN before the first result. */
    private double recomputed = Double.NaN;

    /** Whether a failure has ended the run that may keep other ranks from what all do together. */
    private boolean broken;

    private Map<String, String> ownDescription = Map.of();
    private volatile boolean stopRequested;

    /**
     * Prepares a run.
     *
     * @param learningRate the rate by step, counted from 0
     * @param peakFlops the device's rate, NaN when unknown
     * @param wording of failures
     */
    TrainingRun(
            Training model,
            Batches batches,
            LearningRate learningRate,
            double peakFlops,
            Wording wording,
            List<Callback> callbacks) {
        this.model = model;
        this.batches = batches;
        this.learningRate = learningRate;
        this.peakFlops = peakFlops;
        this.wording = wording;
        this.callbacks = new Callbacks(this, callbacks);
        for (int i = 0; i < STEPS_IN_FLIGHT; i++) {
            metrics[i] = new StepMetrics();
        }
    }

    /** Writes these texts into each state that is saved, by their keys. */
    void describe(Map<String, String> texts) {
        ownDescription = Map.copyOf(texts);
    }

    /** Tells {@code callback}, too, after those that it tells already. */
    void add(Callback callback) {
        callbacks.add(callback);
    }

    /**
     * Asks the run to end: at a checkpoint, or in {@link Callback#onEvaluation}, at once. Else after the step that is under way, or after the
     * next one if its batch is there; also where it waits for data.
     */
    public void stop() {
        stopRequested = true;
        batches.stop();
    }

    /** Returns how many steps were made, those of earlier runs included. */
    public int steps() {
        return made;
    }

    /** Returns how well casts to eight bits did in the oldest step that was measured and not asked for yet; nothing where none was. */
    public List<CastStatistics> castStatistics() {
        return model.castStatistics();
    }

    /** Returns how many steps were replayed, and why others were not; null where none was to be captured. */
    public @Nullable String explainSteps() {
        return model.explainSteps();
    }

    /**
     * Saves, at a checkpoint, what a later run needs to go on. The file takes the old one's place when it is whole.
     *
     * @param description texts that go into the file, by key
     * @throws IllegalStateException when the run is at no checkpoint
     * @throws TrainingException when it cannot be written; the old file is then as it was
     */
    public void save(Path file, Map<String, String> description) {
        ensureAtCheckpoint("save");
        naming(wording, () -> model.save(file, position(made - 1), texts(description)));
    }

    /**
     * Publishes, at a checkpoint, one that has what a later run needs to go on.
     *
     * @param description texts that go into it, by key
     * @throws IllegalStateException when the run is at no checkpoint
     * @throws TrainingException when it cannot be written; nothing is published then
     */
    public void save(CheckpointFolder folder, Map<String, String> description) {
        saveInBackground(folder, description);
        followSave(true);
    }

    /**
     * Begins, at a checkpoint, to write one that has what a later run needs to go on: the copies run during the next step, whose update waits
     * for them, and a thread writes the files. Each callback hears by {@link Callback#onSaved} that it is published, after a later step
     * or at the end of the run. One that is still under way is published first.
     *
     * @param description texts that go into it, by key
     * @throws IllegalStateException when the run is at no checkpoint
     * @throws TrainingException when it, or the one before, cannot be written and no callback {@link Callback#onSaveFailed takes that}; else
     *     such failures end the run after a later step
     */
    public void saveInBackground(CheckpointFolder folder, Map<String, String> description) {
        ensureAtCheckpoint("save");
        followSave(true);
        saving = made;
        follow(model.beginSave(folder, made, position(made - 1), texts(description)));
        followSave(!model.endsTogether()); // Ranks that run loops of their own cannot agree on when to go on.
    }

    /**
     * Checks that the state can be saved, as far as that is known before it.
     *
     * @throws TrainingException when it cannot
     */
    public void ensureSaves() {
        try {
            model.ensureSaves();
        } catch (IllegalStateException e) {
            throw new TrainingException(wording.save() + ": " + e.getMessage(), e);
        }
    }

    /**
     * Takes the page-locked memory of {@link #saveInBackground} on each rank now, so that no step waits for it.
     *
     * @throws dev.chagres.bindings.CudaException when a host does not have that many bytes
     */
    public void reserveSaves(CheckpointFolder folder) {
        model.reserveSaves(folder);
    }

    /** Publishes the checkpoint that is under way once every rank has written its part; {@code waits}: at once. */
    private void followSave(boolean waits) {
        while (saving > 0 && (waits || !model.isSaving())) {
            follow(model.advanceSave());
        }
    }

    private void follow(Training.SaveProgress progress) {
        if (!progress.isOver()) {
            return;
        }
        int step = saving;
        saving = 0;
        SafetensorsException failed = progress.failure();
        if (failed == null) {
            callbacks.saved(step);
            return;
        }
        if (!callbacks.takeFailedSave(step, failed)) {
            naming(wording, () -> {
                throw failed;
            });
        }
    }

    /**
     * Records, from a checkpoint on, the kernels that this process's ranks run and the layers that enqueue them.
     *
     * @throws IllegalStateException when the run is at no checkpoint, or another recording runs
     */
    public KernelTrace beginRecording() {
        ensureAtCheckpoint("beginRecording");
        KernelTrace trace = KernelTrace.begin();
        model.beginRecording(trace);
        return trace;
    }

    /**
     * Ends, at a checkpoint, what {@link #beginRecording} has begun.
     *
     * @throws IllegalStateException when the run is at no checkpoint
     */
    public KernelTimes endRecording(KernelTrace trace) {
        ensureAtCheckpoint("endRecording");
        model.endRecording();
        return trace.end();
    }

    private void ensureAtCheckpoint(String call) {
        if (!callbacks.areAtCheckpoint()) {
            throw new IllegalStateException(call + ": expected a call of onCheckpoint, where the state is whole");
        }
    }

    /** Names the option or the call in what {@code saving} throws. */
    static void naming(Wording wording, Runnable saving) {
        try {
            saving.run();
        } catch (SafetensorsException e) {
            throw new TrainingException(wording.save() + ": " + e.getMessage(), e);
        }
    }

    private Map<String, String> texts(Map<String, String> description) {
        Map<String, String> all = new LinkedHashMap<>(ownDescription);
        all.putAll(description);
        all.putAll(callbacks.texts());
        return all;
    }

    /**
     * Computes the loss of held-out data, at a checkpoint, and tells it to all callbacks. It changes nothing that later steps follow from.
     * Every rank calls it. Where reading the data fails, the run ends, and saves its state.
     *
     * @return null when the run was stopped or has failed, before or meanwhile
     * @throws IllegalStateException when the run is at no checkpoint
     */
    public Evaluation.@Nullable Result evaluate(Evaluation evaluation) {
        ensureAtCheckpoint("evaluate");
        if (broken) {
            return null;
        }
        Evaluation.Result evaluated = ModelEvaluation.evaluate(model, evaluation, made, this::goesOn, this::fail);
        if (evaluated != null) {
            callbacks.evaluated(evaluated);
        }
        return evaluated;
    }

    /**
     * Trains.
     *
     * @param steps how many steps at most
     * @return how many were done and reported
     * @throws TrainingException when loss or gradient are not finite numbers; of a model that skips such steps, when it has
     *     skipped 20 in a row
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     * @throws RuntimeException what reading the data throws
     */
    int run(int steps) throws InterruptedException {
        return run(SavedRun.NEW, steps);
    }

    /**
     * Trains, going on after an earlier run. However it ends, the state of the last whole step is saved first, unless that step has spoilt it.
     *
     * @param before what was done already
     * @param steps how many steps at most, those before included
     * @return how many were done and reported now
     * @throws TrainingException as {@link #run(int)}, and when the state cannot be saved
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     * @throws RuntimeException what reading the data throws
     */
    int run(SavedRun before, int steps) throws InterruptedException {
        first = before.steps();
        made = first;
        unreported = first;
        callbacks.resume(before.texts());
        try {
            callbacks.start();
            train(steps);
        } finally {
            callbacks.end();
        }
        return made - first;
    }

    private void train(int steps) throws InterruptedException {
        try {
            makeSteps(steps);
            followSave(true);
        } catch (RuntimeException | InterruptedException | Error e) {
            saveAfter(e);
            RuntimeException earlier = failure;
            if (earlier == null) {
                throw e;
            }
            earlier.addSuppressed(e);
        }
        if (failure != null) {
            throw failure;
        }
    }

    private void makeSteps(int steps) throws InterruptedException {
        if (first >= steps || !uploadIfAllGoOn(first)) {
            return;
        }
        int step = first;
        boolean more = true;
        while (more) {
            model.step(metrics[step % STEPS_IN_FLIGHT].learningRate());
            int after = step + 1;
            made = after;
            more = after < steps && uploadIfAllGoOn(after);
            reportBefore(step);
            followSave(false);
            callbacks.askClocks(after, model);
            if (callbacks.areDue(more ? after : Callbacks.END)) {
                reportBefore(after); // What a step has spoilt is not saved.
                more = comeToCheckpoint(after, more);
            }
            step = after;
        }
        reportBefore(step);
    }

    /** Tells callbacks of a checkpoint, which may end the run, and returns whether it goes on. */
    private boolean comeToCheckpoint(int after, boolean more) {
        callbacks.comeToCheckpoint(more ? after : Callbacks.END);
        if (!more || model.agree(goesOn())) {
            return more;
        }
        callbacks.comeToCheckpoint(Callbacks.END);
        return false;
    }

    private boolean goesOn() {
        return !stopRequested && failure == null;
    }

    /** Saves the state that a failure has left whole, if it was not saved already, and ends what is under way. */
    private void saveAfter(Throwable e) {
        if (made == first || !model.isWhole() || !model.endsTogether()) {
            return;
        }
        try {
            followSave(true);
            if (!callbacks.areDue(Callbacks.END)) {
                return;
            }
            reportBefore(made);
            if (!spoilt) {
                broken = true;
                callbacks.comeToCheckpoint(Callbacks.END);
                followSave(true);
            }
        } catch (RuntimeException second) {
            e.addSuppressed(second);
        }
    }

    private void reportBefore(int step) {
        for (; unreported < step; unreported++) {
            report(unreported);
        }
    }

    private DataPosition position(int step) {
        return new DataPosition(next[step % STEPS_IN_FLIGHT], takenAhead[step % STEPS_IN_FLIGHT]);
    }

    /**
     * Takes the next batch to the device; false when a rank has none, has failed or is to stop. A rank that waits for data is stopped while it
     * waits, so ranks agree once each has its batch. They end together, for all take part in saving.
     */
    private boolean uploadIfAllGoOn(int step) throws InterruptedException {
        Batch batch = take();
        boolean all = model.agree(batch != null && goesOn());
        if (batch == null) {
            return false;
        }
        if (all) {
            upload(batch, step);
        }
        batches.recycle(batch);
        return all;
    }

    private void upload(Batch batch, int step) {
        model.upload(batch);
        next[step % STEPS_IN_FLIGHT] = batch.endNext();
        takenAhead[step % STEPS_IN_FLIGHT] = batch.endTakenAhead();
        metrics[step % STEPS_IN_FLIGHT].begin(step + 1, batch, model.flops(batch), learningRate.at(step));
    }

    /** Null where there is none; when the data fails, the steps that were enqueued before are still true. */
    private @Nullable Batch take() throws InterruptedException {
        try {
            return batches.take();
        } catch (RuntimeException e) {
            if (!model.endsTogether()) {
                throw e;
            }
            fail(e);
            return null;
        }
    }

    /** Ends the run after the step that is under way, and saves its state. */
    void fail(RuntimeException e) {
        if (failure == null) {
            failure = e;
        } else {
            failure.addSuppressed(e);
        }
    }

    private void report(int step) {
        model.result(result);
        StepMetrics finished = metrics[step % STEPS_IN_FLIGHT];
        boolean skipped = model.skipsSteps() && !Double.isFinite(result.gradNorm());
        if (!skipped) {
            requireFinite("the loss", result.loss(), finished);
            requireFinite("the gradients' norm", result.gradNorm(), finished);
        }
        if (Double.isNaN(recomputed)) {
            recomputed = Math.max(0, model.countedFlops() / finished.flops() - 1);
        }
        finished.complete(result, peakFlops, recomputed, model.memoryBytes(), model.rankSteps());
        skippedInARow = skipped ? skippedInARow + 1 : 0;
        if (skipped) {
            finished.skip();
        }
        finished.emit();
        callbacks.made(finished);
        if (skippedInARow == MOST_SKIPPED) {
            throw new TrainingException("step " + finished.step() + ": the gradients of the last " + MOST_SKIPPED
                    + " steps were not finite, at ever smaller loss scales; lower " + wording.learningRate() + " or "
                    + wording.bf16());
        }
    }

    private void requireFinite(String what, double value, StepMetrics step) {
        if (Double.isFinite(value)) {
            return;
        }
        spoilt = true;
        if (first > 0 && step.step() == first + 1) {
            throw new TrainingException("step " + step.step() + ": " + what + " is " + value + " before anything was"
                    + " learned here, so the weights of the file of " + wording.resume()
                    + " are not finite; resume an older one");
        }
        throw new TrainingException("step " + step.step() + ": " + what + " is " + value + " at learning rate "
                + step.learningRate() + "; lower " + wording.learningRate());
    }
}
