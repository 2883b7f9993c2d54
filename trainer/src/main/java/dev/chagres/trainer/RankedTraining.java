package dev.chagres.trainer;

import dev.chagres.MemoryUse;
import dev.chagres.batch.Batch;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.estimate.FlopCount;
import dev.chagres.estimate.KernelTrace;
import dev.chagres.estimate.Lengths;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.nccl.Operation;
import dev.chagres.recipe.CastStatistics;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A model trained by several ranks with a device each: micro-batch m of a step belongs to data-parallel rank m modulo their number, and to
 * all ranks that split its layers or tokens. What {@link ModelTraining} does is asked of every rank, and returns when all have done it.
 *
 * <p>Threading: confined to the thread that made it.
 */
final class RankedTraining implements Training {
    /** Of a step's result: loss, norm, milliseconds, memory; then bytes by operation. */
    private static final int BYTES = 4;

    private static final int NUMBERS = BYTES + Operation.values().length;
    private final ModelSetup setup;
    private final RankThreads ranks;
    /** Of the first rank, to be asked for its flops alone. */
    private final TrainedModel model;

    private final long parameterCount;
    private final boolean skipsSteps;
    private final EffectiveWindows windows;
    private final double peakFlops;
    private long memoryBytes;
    private List<RankStep> rankSteps = List.of();

    /**
     * Starts the ranks and makes the model on each.
     *
     * @param purpose what must be the same in all processes, a line each
     * @param stopped ends waiting for ranks that are other processes
     * @throws TrainingException when there are fewer devices than ranks, a rank fails, or {@code stopped} says so before all ranks are
     *     there
     */
    RankedTraining(ModelSetup setup, String purpose, Wording wording, BooleanSupplier stopped) {
        this.setup = setup;
        ranks = new RankThreads(setup, NUMBERS, purpose, wording, stopped);
        model = ranks.ask(ModelTraining::model).getFirst();
        parameterCount = ranks.ask(ModelTraining::parameterCount).getFirst();
        peakFlops = setup.layout().count() * ranks.ask(ModelTraining::peakFlops).getFirst();
        skipsSteps = ranks.ask(ModelTraining::skipsSteps).getFirst();
        windows = ranks.ask(ModelTraining::windows).getFirst();
    }

    @Override
    public void warmUp(Batch example, BooleanSupplier stopped) {
        // Processes begin together: each would stop elsewhere.
        ranks.tell(training -> training.warmUp(example, ranks.areProcesses() ? () -> false : stopped));
    }

    @Override
    public boolean agree(boolean goOn) {
        if (!ranks.areProcesses()) {
            return goOn;
        }
        long[] all = ranks.ask(_ -> ranks.gather(goOn ? 1 : 0)).getFirst();
        for (int i = 0; i < all.length; i += NUMBERS) {
            if (all[i] == 0) {
                return false;
            }
        }
        return true;
    }

    @Override
    public void upload(Batch batch) {
        ranks.tell(training -> training.upload(batch));
    }

    @Override
    public void step(float learningRate) {
        ranks.tell(training -> training.step(learningRate));
    }

    /** A rank that fails ends all, and a state is saved by all. */
    @Override
    public boolean isWhole() {
        return !ranks.haveEnded();
    }

    /** Waits for the oldest step: the parts of the loss add up, and the slowest rank is the step's time. */
    @Override
    public void result(StepResult result) {
        List<long[]> parts = ranks.ask(training -> ranks.gather(numbersOf(training)));
        List<RankStep> steps = new ArrayList<>();
        double loss = 0;
        long most = 0;
        for (long[] part : parts) {
            for (int at = 0; at < part.length; at += NUMBERS) {
                int rank = steps.size();
                // Ranks that split layers have computed the same loss.
                loss += rank % setup.layout().tensorRanks() == 0 ? Double.longBitsToDouble(part[at]) : 0;
                steps.add(RankStep.of(rank, Double.longBitsToDouble(part[at + 2]), part, at + BYTES));
                most = Math.max(most, part[at + 3]);
            }
        }
        memoryBytes = most;
        rankSteps = List.copyOf(steps);
        double slowest = steps.stream().mapToDouble(RankStep::millis).max().orElseThrow();
        result.set(loss, Double.longBitsToDouble(parts.getFirst()[1]), slowest);
    }

    @Override
    public int evaluatedTogether() {
        return ranks.ask(ModelTraining::evaluatedTogether).getFirst();
    }

    @Override
    public void beginEvaluation() {
        ranks.tell(ModelTraining::beginEvaluation);
    }

    @Override
    public void endEvaluation() {
        ranks.tell(ModelTraining::endEvaluation);
    }

    @Override
    public ModelEvaluation.Sums evaluate(Batch batch) {
        List<long[]> parts = ranks.ask(training -> {
            ModelEvaluation.Sums own = training.evaluate(batch);
            return ranks.gather(Double.doubleToRawLongBits(own.loss()), own.correct());
        });
        double loss = 0;
        long correct = 0;
        int rank = 0;
        for (long[] part : parts) {
            for (int at = 0; at < part.length; at += NUMBERS, rank++) {
                if (rank % setup.layout().tensorRanks() == 0) {
                    loss += Double.longBitsToDouble(part[at]);
                    correct = correct < 0 || part[at + 1] < 0 ? -1 : correct + part[at + 1];
                }
            }
        }
        return new ModelEvaluation.Sums(loss, correct);
    }

    private static long[] numbersOf(ModelTraining training) {
        StepResult result = new StepResult();
        training.result(result);
        long[] numbers = new long[NUMBERS];
        numbers[0] = Double.doubleToRawLongBits(result.loss());
        numbers[1] = Double.doubleToRawLongBits(result.gradNorm());
        numbers[2] = Double.doubleToRawLongBits(result.millis());
        numbers[3] = training.memoryBytes();
        long[] bytes = training.readBytes();
        System.arraycopy(bytes, 0, numbers, BYTES, bytes.length);
        return numbers;
    }

    @Override
    public List<RankStep> rankSteps() {
        return rankSteps;
    }

    @Override
    public void save(Path file, DataPosition position, Map<String, String> description) {
        ranks.tell(training -> training.save(file, position, description));
    }

    @Override
    public void reserveSaves(CheckpointFolder folder) {
        ranks.tell(training -> training.reserveSaves(folder));
    }

    @Override
    public SaveProgress beginSave(
            CheckpointFolder folder, int step, DataPosition position, Map<String, String> description) {
        return ranks.ask(training -> training.beginSave(folder, step, position, description))
                .getFirst();
    }

    @Override
    public boolean isSaving() {
        List<Boolean> busy = ranks.ask(ModelTraining::isSaving);
        return ranks.areProcesses() ? !agree(!busy.getFirst()) : busy.contains(true);
    }

    @Override
    public SaveProgress advanceSave() {
        return ranks.ask(ModelTraining::advanceSave).getFirst();
    }

    @Override
    public boolean ofFirstRank(boolean own) {
        return ranks.areProcesses() ? ranks.ask(_ -> ranks.gather(own ? 1 : 0)).getFirst()[0] != 0 : own;
    }

    @Override
    public RecipeDifferences loadUnderOtherRecipe(Path file) {
        return ranks.ask(training -> training.loadUnderOtherRecipe(file)).getFirst();
    }

    @Override
    public void begin(Consumer<RunState> start) {
        ranks.tell(training -> training.begin(start));
    }

    @Override
    public void ensureSaves() {
        ranks.tell(ModelTraining::ensureSaves);
    }

    @Override
    public void load(Path file) {
        ranks.tell(training -> training.load(file));
    }

    @Override
    public List<MemoryUse> memoryUse() {
        return ranks.ask(training -> training.memoryUse().getFirst());
    }

    @Override
    public long hostBytes() {
        return ranks.ask(ModelTraining::hostBytes).stream()
                .mapToLong(Long::longValue)
                .max()
                .orElse(0);
    }

    @Override
    public double countedFlops() {
        return ranks.areProcesses()
                ? 0
                : ranks.ask(ModelTraining::countedFlops).stream()
                        .mapToDouble(Double::doubleValue)
                        .sum();
    }

    @Override
    public List<FlopCount> countedStep(Batch batch, Lengths lengths) {
        return ranks.ask(training -> {
            List<FlopCount> counts = training.countedStep(batch, lengths);
            training.readBytes();
            return counts.getFirst();
        });
    }

    @Override
    public void beginRecording(KernelTrace trace) {
        ranks.tell(training -> training.beginRecording(trace));
    }

    @Override
    public void endRecording() {
        ranks.tell(ModelTraining::endRecording);
    }

    /** Returns those of rank 0. */
    @Override
    public List<CastStatistics> castStatistics() {
        return ranks.ask(ModelTraining::castStatistics).getFirst();
    }

    @Override
    public boolean skipsSteps() {
        return skipsSteps;
    }

    @Override
    public EffectiveWindows windows() {
        return windows;
    }

    @Override
    public long parameterCount() {
        return parameterCount;
    }

    @Override
    public double flops(Batch batch) {
        return model.flops(batch);
    }

    /** Returns what rank 0 says, or what this process's rank does. */
    @Override
    public @Nullable String explainSteps() {
        return setup.enqueuing().steps() == ModelSetup.Steps.CAPTURED
                ? ranks.ask(training -> Objects.requireNonNull(training.explainSteps()))
                        .getFirst()
                : null;
    }

    @Override
    public double peakFlops() {
        return peakFlops;
    }

    /** Returns the most that one rank has held. */
    @Override
    public long memoryBytes() {
        return memoryBytes;
    }

    @Override
    public void fail(Throwable cause) {
        ranks.fail(cause);
    }

    /** Ends the ranks and waits for them. A second call does nothing. */
    @Override
    public void close() {
        ranks.close();
    }
}
