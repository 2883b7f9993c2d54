package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.SafetensorsException;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
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
 * The thread of each rank, where its part of the model is made, asked and closed. Ranks are threads of this program; or processes, each of
 * which has one and asks it the same.
 *
 * <p>Threading: confined to the thread that made it, but for {@link #gather}.
 */
final class RankThreads implements AutoCloseable {
    private static final Consumer<ModelTraining> END = training -> {};
    /** How often a rank that waits for others looks whether it is to end. */
    private static final long LOOK_MILLIS = 100;

    private final ModelSetup setup;
    private final int numbers;
    private final List<BlockingQueue<Consumer<ModelTraining>>> work = new ArrayList<>();
    private final CompletableFuture<Boolean> ended = new CompletableFuture<>();
    private boolean closed;
    /** Null where ranks are threads; for the rank's thread. */
    private @Nullable RankNumbers gathering;

    /**
     * Starts the ranks, each of which makes its part of the model.
     *
     * @param numbers how many {@link #gather} gathers of each rank
     * @param purpose what must be the same in all processes, a line each
     * @param stopped ends waiting for ranks that are other processes
     * @throws TrainingException when there are fewer devices than ranks, a rank fails, or {@code stopped} says so before all ranks are
     *     there
     */
    RankThreads(ModelSetup setup, int numbers, String purpose, Wording wording, BooleanSupplier stopped) {
        this.setup = setup;
        this.numbers = numbers;
        int count = setup.layout().count();
        Ranks ranks = areProcesses() ? Ranks.fromEnvironment().withPurpose(purpose) : local(count, wording);
        for (int i = 0; i < (areProcesses() ? 1 : count); i++) {
            work.add(new LinkedBlockingQueue<>());
        }
        Thread.ofPlatform().daemon().name("ranks").start(() -> run(ranks));
        if (areProcesses()) {
            awaitOthers(stopped);
        }
    }

    /** Returns whether the ranks are processes, of which this one asks its own rank alone. */
    boolean areProcesses() {
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

    private static Ranks local(int count, Wording wording) {
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
        BlockingQueue<Consumer<ModelTraining>> queue = work.get(areProcesses() ? 0 : rank.index());
        try (ModelTraining training = ModelTraining.of(rank, setup);
                RankNumbers own = areProcesses() ? new RankNumbers(rank, numbers) : null) {
            gathering = own;
            for (Consumer<ModelTraining> next = queue.take(); next != END; next = queue.take()) {
                next.accept(training);
            }
        }
    }

    /** Asks every rank, and waits for all answers, in the order of ranks. */
    <T> List<T> ask(Function<ModelTraining, T> question) {
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

    /** Gives every rank the order, and waits until all have followed it. */
    void tell(Consumer<ModelTraining> order) {
        ask(training -> {
            order.accept(training);
            return true;
        });
    }

    /**
     * Returns numbers of all ranks in their order where they are processes, else of the rank that calls it, in its thread; every rank does. Those
     * that {@code own} lacks are 0.
     */
    long[] gather(long... own) {
        long[] whole = Arrays.copyOf(own, numbers);
        RankNumbers present = gathering;
        return present == null ? whole : present.gather(whole);
    }

    /** Returns whether a rank has ended, which ends all. */
    boolean haveEnded() {
        return ended.isDone();
    }

    /** The rank throws in its thread, which is how the others learn of it. Threads of one program end together anyway. */
    void fail(Throwable cause) {
        if (areProcesses()) {
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
