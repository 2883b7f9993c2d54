package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
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
import dev.chagres.io.SafetensorsException;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Operation;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.recipe.CastStatistics;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * A model trained by several ranks with a device each: micro-batch m of a step belongs to data-parallel rank m modulo their number, and to
 * all ranks that split its layers or tokens. What {@link ModelTraining} does is asked of every rank, and returns when all have done it. Ranks are threads
 * of this program; or processes, each of which has one and asks it the same.
 *
 * <p>Threading: confined to the thread that made it.
 */
final class RankedTraining implements Training {
    private static final Consumer<ModelTraining> END = training -> {};
    /** Of a step's result: loss, norm, milliseconds, memory; then bytes by operation. */
    private static final int BYTES = 4;

    private static final int NUMBERS = BYTES + Operation.values().length;
    /** How often a rank that waits for others looks whether it is to end. */
    private static final long LOOK_MILLIS = 100;

    private final ModelSetup setup;
    private final Wording wording;
    /** Of the first rank, to be asked for its flops alone. */
    private final TrainedModel model;

    private final List<BlockingQueue<Consumer<ModelTraining>>> work = new ArrayList<>();
    private final CompletableFuture<Boolean> ended = new CompletableFuture<>();
    private final long parameterCount;
    private final boolean skipsSteps;
    private final EffectiveWindows windows;
    private boolean closed;
    /** Null where ranks are threads; for the rank's thread. */
    private @Nullable RankNumbers numbers;

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
        this.wording = wording;
        int count = setup.layout().count();
        Ranks ranks = processes() ? Ranks.fromEnvironment().withPurpose(purpose) : local(count);
        for (int i = 0; i < (processes() ? 1 : count); i++) {
            work.add(new LinkedBlockingQueue<>());
        }
        Thread.ofPlatform().daemon().name("ranks").start(() -> run(ranks));
        if (processes()) {
            awaitOthers(stopped);
        }
        model = ask(ModelTraining::model).getFirst();
        parameterCount = ask(ModelTraining::parameterCount).getFirst();
        peakFlops = setup.layout().count() * ask(ModelTraining::peakFlops).getFirst();
        skipsSteps = ask(ModelTraining::skipsSteps).getFirst();
        windows = ask(ModelTraining::windows).getFirst();
    }

    private boolean processes() {
        return setup.layout().places() == RankLayout.Places.PROCESSES;
    }

    /** Waits until all processes are there, or this one is to end, which those that do not come would keep it from. */
    private void awaitOthers(BooleanSupplier stopped) {
        CompletableFuture<Boolean> there = new CompletableFuture<>();
        work.getFirst().add(_ -> there.complete(true));
        CompletableFuture<Object> either = CompletableFuture.anyOf(there, ended);
        try {
            while (true) {
                try {
                    either.get(LOOK_MILLIS, TimeUnit.MILLISECONDS);
                    return;
                } catch (TimeoutException e) {
                    if (stopped.getAsBoolean()) {
                        throw new TrainingException(
                                "the run was ended while this rank waited for the others to come", e);
                    }
                }
            }
        } catch (ExecutionException e) {
            throw failed(e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TrainingException("interrupted while this rank waited for the others to come", e);
        }
    }

    private Ranks local(int count) {
        try {
            return Ranks.local(count);
        } catch (IllegalArgumentException e) {
            String text = String.valueOf(e.getMessage());
            throw new TrainingException(text.replaceFirst("^count:", wording.ranks() + ":"), e);
        }
    }

    private void run(Ranks ranks) {
        try {
            ranks.each(this::serve);
            ended.complete(true);
        } catch (IllegalStateException refused) { // Processes did not come together.
            ended.completeExceptionally(new TrainingException(String.valueOf(refused.getMessage()), refused));
        } catch (Throwable failure) {
            ended.completeExceptionally(failure);
        }
    }

    private void serve(Rank rank) throws InterruptedException {
        BlockingQueue<Consumer<ModelTraining>> queue = work.get(processes() ? 0 : rank.index());
        try (ModelTraining training = ModelTraining.of(rank, setup);
                RankNumbers gathering = processes() ? new RankNumbers(rank, NUMBERS) : null) {
            numbers = gathering;
            for (Consumer<ModelTraining> next = queue.take(); next != END; next = queue.take()) {
                next.accept(training);
            }
        }
    }

    /** Asks every rank, and waits for all answers, in the order of ranks. */
    private <T> List<T> ask(Function<ModelTraining, T> question) {
        List<CompletableFuture<T>> answers = new ArrayList<>();
        for (BlockingQueue<Consumer<ModelTraining>> queue : work) {
            CompletableFuture<T> answer = new CompletableFuture<>();
            answers.add(answer);
            queue.add(training -> answer.complete(question.apply(training)));
        }
        try {
            for (CompletableFuture<T> answer : answers) {
                CompletableFuture.anyOf(answer, ended).join();
            }
            return answers.stream().map(CompletableFuture::join).toList();
        } catch (CompletionException e) {
            throw failed(e.getCause());
        }
    }

    private static RuntimeException failed(@Nullable Throwable cause) {
        if (cause instanceof RankFailedException failure) {
            if (failure.getCause() instanceof SafetensorsException file) {
                return file; // of rank 0's file, on every rank
            }
            return new TrainingException(String.valueOf(failure.getMessage()), failure);
        }
        return cause instanceof RuntimeException unchecked ? unchecked : new IllegalStateException(cause);
    }

    private void tell(Consumer<ModelTraining> order) {
        ask(training -> {
            order.accept(training);
            return true;
        });
    }

    @Override
    public void warmUp(Batch example, BooleanSupplier stopped) {
        // Processes begin together: each would stop elsewhere.
        tell(training -> training.warmUp(example, processes() ? () -> false : stopped));
    }

    @Override
    public boolean agree(boolean goOn) {
        if (!processes()) {
            return goOn;
        }
        long[] all = ask(_ -> gather(goOn ? 1 : 0)).getFirst();
        for (int i = 0; i < all.length; i += NUMBERS) {
            if (all[i] == 0) {
                return false;
            }
        }
        return true;
    }

    /** Gathers so many numbers of each rank, the rest 0. */
    private long[] gather(long... own) {
        return Objects.requireNonNull(numbers).gather(Arrays.copyOf(own, NUMBERS));
    }

    @Override
    public void upload(Batch batch) {
        tell(training -> training.upload(batch));
    }

    @Override
    public void step(float learningRate) {
        tell(training -> training.step(learningRate));
    }

    /** A rank that fails ends all, and a state is saved by all. */
    @Override
    public boolean isWhole() {
        return !ended.isDone();
    }

    /** Waits for the oldest step: the parts of the loss add up, and the slowest rank is the step's time. */
    @Override
    public void result(StepResult result) {
        List<long[]> parts = ask(training -> {
            long[] own = numbersOf(training);
            return processes() ? gather(own) : own;
        });
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
        return ask(ModelTraining::evaluatedTogether).getFirst();
    }

    @Override
    public void beginEvaluation() {
        ask(training -> {
            training.beginEvaluation();
            return true;
        });
    }

    @Override
    public void endEvaluation() {
        ask(training -> {
            training.endEvaluation();
            return true;
        });
    }

    @Override
    public ModelEvaluation.Sums evaluate(Batch batch) {
        List<long[]> parts = ask(training -> {
            ModelEvaluation.Sums own = training.evaluate(batch);
            long bits = Double.doubleToRawLongBits(own.loss());
            return processes() ? gather(bits, own.correct()) : Arrays.copyOf(new long[] {bits, own.correct()}, NUMBERS);
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
        tell(training -> training.save(file, position, description));
    }

    @Override
    public void reserveSaves(CheckpointFolder folder) {
        tell(training -> training.reserveSaves(folder));
    }

    @Override
    public SaveProgress beginSave(
            CheckpointFolder folder, int step, DataPosition position, Map<String, String> description) {
        return ask(training -> training.beginSave(folder, step, position, description))
                .getFirst();
    }

    @Override
    public boolean isSaving() {
        List<Boolean> busy = ask(ModelTraining::isSaving);
        return processes() ? !agree(!busy.getFirst()) : busy.contains(true);
    }

    @Override
    public SaveProgress advanceSave() {
        return ask(ModelTraining::advanceSave).getFirst();
    }

    @Override
    public boolean ofFirstRank(boolean own) {
        return processes() ? ask(_ -> gather(own ? 1 : 0)).getFirst()[0] != 0 : own;
    }

    @Override
    public RecipeDifferences loadUnderOtherRecipe(Path file) {
        return ask(training -> training.loadUnderOtherRecipe(file)).getFirst();
    }

    @Override
    public void begin(Consumer<RunState> start) {
        tell(training -> training.begin(start));
    }

    @Override
    public void ensureSaves() {
        tell(ModelTraining::ensureSaves);
    }

    @Override
    public void load(Path file) {
        tell(training -> training.load(file));
    }

    @Override
    public List<MemoryUse> memoryUse() {
        return ask(training -> training.memoryUse().getFirst());
    }

    @Override
    public long hostBytes() {
        return ask(ModelTraining::hostBytes).stream()
                .mapToLong(Long::longValue)
                .max()
                .orElse(0);
    }

    @Override
    public double countedFlops() {
        return processes()
                ? 0
                : ask(ModelTraining::countedFlops).stream()
                        .mapToDouble(Double::doubleValue)
                        .sum();
    }

    @Override
    public List<FlopCount> countedStep(Batch batch, Lengths lengths) {
        return ask(training -> {
            List<FlopCount> counts = training.countedStep(batch, lengths);
            training.readBytes();
            return counts.getFirst();
        });
    }

    @Override
    public void beginRecording(KernelTrace trace) {
        tell(training -> training.beginRecording(trace));
    }

    @Override
    public void endRecording() {
        tell(ModelTraining::endRecording);
    }

    /** Returns those of rank 0. */
    @Override
    public List<CastStatistics> castStatistics() {
        return ask(ModelTraining::castStatistics).getFirst();
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
                ? ask(training -> Objects.requireNonNull(training.explainSteps()))
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

    /** The rank throws in its thread, which is how the others learn of it. Threads of one program end together anyway. */
    @Override
    public void fail(Throwable cause) {
        if (processes()) {
            end(_ -> {
                throw new TrainingException(String.valueOf(cause.getMessage()), cause);
            });
        }
    }

    /** Ends the ranks and waits for them. A second call does nothing. */
    @Override
    public void close() {
        end(END);
    }

    private void end(Consumer<ModelTraining> last) {
        if (closed) {
            return;
        }
        closed = true;
        work.forEach(queue -> queue.add(last));
        try {
            ended.join();
        } catch (CompletionException e) {
            // Whoever asked the ranks something has been told; nobody else waits for them.
        }
    }

    /**
     * Tells every rank a few numbers of all others, where ranks are processes. It has a stream and a communicator of its own, so that it does
     * not wait for the steps that are under way.
     *
     * <p>Threading: the device's thread.
     */
    private static final class RankNumbers implements AutoCloseable {
        private final Communicator communicator;
        private final Stream stream;
        private final Scope scope;
        private final Tensor own;
        private final Tensor all;

        /** Makes what gathers {@code count} numbers of each rank; every rank does. */
        RankNumbers(Rank rank, int count) {
            communicator = rank.communicator()
                    .split(0, rank.index(), rank.communicator().config().withName("numbers"));
            stream = rank.device().openStream();
            scope = rank.device().openScope(stream);
            own = scope.tensor(DType.INT64, count);
            all = scope.tensor(DType.INT64, (long) count * rank.count());
        }

        /** Returns the numbers of all ranks, in their order; every rank calls it. */
        long[] gather(long... numbers) {
            own.set(stream, numbers);
            communicator.allGather(own, all, stream);
            communicator.synchronize(stream);
            return all.toLongs(stream);
        }

        @Override
        public void close() {
            scope.close();
            stream.close();
            communicator.close();
        }
    }
}
