package dev.chagres.pass;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.Uninterruptibles;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.SharedWeights;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Threads that evaluate one model on one GPU at the same time: each has a stream, a pass and layers of its own, and all read one copy of the
 * weights.
 *
 * {@snippet file="dev/chagres/pass/PassPoolTest.java" region="pool"}
 *
 * <p>A task gets the model and a pass of the thread that runs it. The pass is begun before the task and ended after it, so results are copied
 * to the host in the task. Numbers are those that one pass of the owner's model computes.
 *
 * <p>While the pool is open, nobody may write to the weights: see {@link SharedWeights}. The pool and the parameters may be closed in any order.
 *
 * <p>Threading: thread-safe, but for {@link #open}, which needs the device's thread.
 *
 * @param <M> the model: what a function makes of a plan
 */
public final class PassPool<M> implements AutoCloseable {
    /**
     * Work of one thread.
     *
     * @param <M> the model
     * @param <R> the result
     */
    @FunctionalInterface
    public interface Task<M, R> {
        /**
         * Computes a result on the host.
         *
         * @param pass begun; tensors of its scope are closed when this returns
         * @throws Exception any, which {@link Future#get} then throws
         */
        R run(M model, Pass pass) throws Exception;
    }

    /** Work and who waits for it; null for the end of a thread. */
    private record Work<M>(@Nullable Task<M, ?> task, CompletableFuture<Object> result) {
        private void run(Task<M, ?> present, M model, Pass pass) {
            try {
                Object value;
                try {
                    value = present.run(model, pass.begin());
                } finally {
                    pass.end();
                }
                result.complete(value);
            } catch (Throwable failure) { // Whoever waits for the result gets it.
                result.completeExceptionally(failure);
            }
        }
    }

    private final SharedWeights weights;
    private final Function<ModelPlan, M> maker;
    private final LinkedBlockingQueue<Work<M>> waiting = new LinkedBlockingQueue<>();
    private final List<Thread> threads = new ArrayList<>();
    private boolean closed;

    private PassPool(SharedWeights weights, Function<ModelPlan, M> maker) {
        this.weights = weights;
        this.maker = maker;
    }

    /**
     * Starts {@code workers} threads, each of which opens the device of {@code owner} and makes a model, and waits until they are ready.
     *
     * @param maker called on each thread; declares the parameters of {@code owner}, or some of them, in the plan that it is given, and
     *     returns what computes with them
     * @throws IllegalArgumentException when {@code workers} is not positive, or as {@link SharedWeights#of} and {@link SharedWeights#lend}
     * @throws IllegalStateException as {@link SharedWeights#of}
     */
    public static <M> PassPool<M> open(Parameters owner, int workers, Function<ModelPlan, M> maker) {
        Checks.atLeastOne("workers", workers);
        Checks.given("maker", maker);
        PassPool<M> pool = new PassPool<>(SharedWeights.of(owner), maker);
        List<CompletableFuture<Void>> ready = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            CompletableFuture<Void> one = new CompletableFuture<>();
            ready.add(one);
            pool.threads.add(
                    Thread.ofPlatform().daemon().name("chagres-pass-" + i).start(() -> pool.work(one)));
        }
        try {
            ready.forEach(CompletableFuture::join);
            return pool;
        } catch (CompletionException failure) {
            pool.close();
            throw failure.getCause() instanceof RuntimeException cause ? cause : failure;
        }
    }

    private void work(CompletableFuture<Void> ready) {
        try (Device device = Device.open(weights.deviceIndex())) {
            ModelPlan plan = new ModelPlan();
            M model = Checks.given("maker.apply(plan)", maker.apply(plan));
            try (Parameters _ = weights.lend(device, plan);
                    Pass pass = Pass.evaluation(device)) {
                ready.complete(null);
                Work<M> next = waiting.take();
                for (Task<M, ?> task = next.task; task != null; task = next.task) {
                    next.run(task, model, pass);
                    next = waiting.take();
                }
            }
        } catch (Throwable failure) { // Nobody else sees it: open, or close, does.
            ready.completeExceptionally(failure);
        }
    }

    /**
     * Gives {@code task} to the next thread that has none.
     *
     * @return the result, or what the task has thrown
     * @throws IllegalStateException when the pool is closed
     */
    @SuppressWarnings("unchecked") // A task's result goes into its own future.
    public <R> CompletableFuture<R> submit(Task<? super M, R> task) {
        Checks.given("task", task);
        CompletableFuture<R> result = new CompletableFuture<>();
        synchronized (this) {
            if (closed) {
                throw new IllegalStateException("the pool is closed; open another with PassPool.open");
            }
            waiting.add(new Work<>((Task<M, ?>) task, (CompletableFuture<Object>) (CompletableFuture<?>) result));
        }
        return result;
    }

    /**
     * Waits for the tasks that were submitted, ends the threads, and gives the weights back. A second call does nothing. An interrupt does not
     * end the wait; the thread sees it afterwards.
     *
     * @throws IllegalStateException from a task, which would wait for itself
     */
    @Override
    public void close() {
        if (threads.contains(Thread.currentThread())) {
            throw new IllegalStateException(
                    "close: expected a call outside of tasks, which it waits for, got one inside");
        }
        synchronized (this) {
            if (!closed) {
                closed = true;
                threads.forEach(_ -> waiting.add(new Work<>(null, new CompletableFuture<>())));
            }
        }
        threads.forEach(thread -> Uninterruptibles.await(thread::join));
        weights.close();
    }

    @Override
    public String toString() {
        return "pool of " + threads.size() + " passes over " + weights;
    }
}
