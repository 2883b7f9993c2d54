package dev.chagres.trainer;

import dev.chagres.MemoryUse;
import dev.chagres.batch.Batch;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.StepResult;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.estimate.FlopCount;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.estimate.Lengths;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.recipe.CastStatistics;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A model with its optimizer, as the training loop drives it. A step's result is read while the next step runs already:
 *
 * <pre>
 *   upload(0)  step  upload(1)  step  result(0)  upload(2)  step  result(1) …
 * </pre>
 *
 * <p>Threading: confined to the thread that made it.
 */
interface Training extends AutoCloseable {
    /**
     * Builds everything that is built when it is first used, such as kernels and attention plans, so that no step takes the
     * time: forward and backward over made-up batches. Weights, optimizer state and random numbers stay as they are. Called
     * once at most, before the first {@link #upload}.
     *
     * @param example what the batches to come are like; it is only looked at
     * @param stopped whether to end early, asked between two batches
     */
    void warmUp(Batch example, BooleanSupplier stopped);

    /** Returns whether to make another step: where ranks are processes, when each wants to. */
    default boolean agree(boolean goOn) {
        return goOn;
    }

    /** Copies a batch to where the next {@link #step} reads it; on return the batch may be filled again. */
    void upload(Batch batch);

    /**
     * Enqueues forward, backward, clipping and update on the batch uploaded last, and returns as soon as that is enqueued.
     */
    void step(float learningRate);

    /** Returns whether {@link #save} would save the state after whole steps; false once a step has failed that may have changed it. */
    default boolean isWhole() {
        return true;
    }

    /** Returns whether all ranks end in the same step, whatever ends the run; else each runs a loop of its own, which a failure ends at once. */
    default boolean endsTogether() {
        return true;
    }

    /** Returns how many micro-batches of held-out data ranks compute at a time: as many as there are copies of the model, and stages. */
    default int evaluatedTogether() {
        return 1;
    }

    /** Makes the weights those that are evaluated; called before {@link #evaluate}. */
    default void beginEvaluation() {}

    /** Makes the weights again those that training goes on with; called after the last {@link #evaluate}. */
    default void endEvaluation() {}

    /**
     * Computes the losses of held-out data, waits for them, and changes nothing that later steps follow from. Called between steps, once
     * every result is read; the next step's time does not count it.
     *
     * @return the sums over all ranks
     */
    ModelEvaluation.Sums evaluate(Batch batch);

    /** Waits for the oldest step whose result was not read yet, and reads it. */
    void result(StepResult result);

    /** Returns what each of several ranks says of the step whose result was read last, in their order; nothing of a model on one rank. */
    default List<RankStep> rankSteps() {
        return List.of();
    }

    /**
     * Returns how well casts to eight bits did in the oldest step that was measured and not asked for yet; nothing where none
     * was.
     */
    default List<CastStatistics> castStatistics() {
        return List.of();
    }

    /**
     * Writes what a later run needs to go on, after the steps enqueued so far. The file takes the old one's place when it is whole.
     *
     * @param position what of the data was taken so far
     * @param description texts that go into the file, by key
     * @throws dev.chagres.io.SafetensorsException when it cannot be written; the old file is then as it was
     */
    void save(Path file, DataPosition position, Map<String, String> description);

    /**
     * How far a checkpoint is.
     *
     * @param isOver whether it is published or has failed
     * @param failure why nothing is published; null where it is, or may be
     */
    record SaveProgress(boolean isOver, @Nullable SafetensorsException failure) {
        static final SaveProgress UNDER_WAY = new SaveProgress(false, null);
        static final SaveProgress PUBLISHED = new SaveProgress(true, null);
    }

    /** Takes the memory that {@link #beginSave} copies through, before the first step. */
    void reserveSaves(CheckpointFolder folder);

    /**
     * Begins a checkpoint, after the steps enqueued so far, which is written while later ones run; none is under way.
     *
     * @param step that it is named by
     * @param position what of the data was taken so far
     * @param description texts that go into it, by key
     */
    SaveProgress beginSave(CheckpointFolder folder, int step, DataPosition position, Map<String, String> description);

    /** Returns whether {@link #advanceSave} would wait for a rank. */
    default boolean isSaving() {
        return false;
    }

    /** Goes on with the checkpoint that is under way, on every rank. */
    default SaveProgress advanceSave() {
        return SaveProgress.PUBLISHED;
    }

    /** Returns what the first rank says, where ranks are processes. */
    default boolean ofFirstRank(boolean own) {
        return own;
    }

    /**
     * Goes on from what {@link #save} wrote. Called before the first step.
     *
     * @throws dev.chagres.io.SafetensorsException when the file cannot be read, or is that of another model; nothing is loaded then
     */
    void load(Path file);

    /**
     * Begins with weights that {@code start} loads, which is given them on each rank. Called before the first step.
     *
     * @throws RuntimeException what it throws
     */
    default void begin(Consumer<RunState> start) {
        throw new IllegalStateException("begin: expected a model whose weights can be loaded, got " + this);
    }

    /**
     * Goes on as {@link #load} does from a file whose run had another recipe, without its scales and histories.
     *
     * @return what was not loaded; nothing of a model without recipe
     * @throws dev.chagres.io.SafetensorsException as {@link #load} does
     */
    default RecipeDifferences loadUnderOtherRecipe(Path file) {
        load(file);
        return RecipeDifferences.NONE;
    }

    /**
     * Checks that {@link #save} can save the state, as far as that is known before it.
     *
     * @throws IllegalStateException when it cannot
     */
    default void ensureSaves() {}

    /** Returns whether a step whose gradients are not finite changes nothing but the scale of the loss. */
    boolean skipsSteps();

    /** Returns how several ranks gather weights and reduce gradients. */
    default EffectiveWindows windows() {
        return EffectiveWindows.NOTHING_SHARDED;
    }

    /** Returns the number of trained parameters. */
    long parameterCount();

    /** Returns the operations a second that the devices of all ranks can do at most, by their data sheets; NaN where that is not known. */
    default double peakFlops() {
        return Double.NaN;
    }

    /** Returns the floating-point operations of a step on this batch, forward and backward, padding left out. */
    double flops(Batch batch);

    /** Returns how many steps were replayed, and why others were not; null where none was to be captured. */
    @Nullable
    String explainSteps();

    /** Returns the most device memory held so far, in bytes. */
    long memoryBytes();

    /** Returns which parts of the program held memory of each rank when it held most; nothing where that is not known. */
    default List<MemoryUse> memoryUse() {
        return List.of();
    }

    /** Returns the bytes of the host's memory that a rank's optimizer and passes hold. */
    default long hostBytes() {
        return 0;
    }

    /** Returns the operations of products and attention that all ranks of this process enqueued in the first step; 0 where nobody counts. */
    default double countedFlops() {
        return 0;
    }

    /**
     * Makes a step, kernel by kernel, whose result nobody reads, and returns the operations that each rank of this process enqueued.
     *
     * @param lengths of the sequences of each micro-batch
     */
    default List<FlopCount> countedStep(Batch batch, Lengths lengths) {
        return List.of();
    }

    /** Records the layers of the steps to come, on each rank of this process, until {@link #endRecording}. */
    default void beginRecording(KernelTrace trace) {}

    /** Waits for the devices, and records no more. */
    default void endRecording() {}

    /** Tells ranks in other processes, before {@link #close}, that this one ends by {@code cause}: they end, too. */
    default void fail(Throwable cause) {}

    @Override
    void close();
}
