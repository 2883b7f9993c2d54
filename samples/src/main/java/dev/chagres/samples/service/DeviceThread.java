package dev.chagres.samples.service;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The one thread that owns the device. While it computes, requests gather; what has gathered is its next batch.
 *
 * <p>Threading: thread-safe.
 */
final class DeviceThread implements AutoCloseable {
    /** Computes a vector for each protein; used by the device's thread alone. */
    interface Embedder extends AutoCloseable {
        List<float[]> embed(List<String> proteins);

        @Override
        void close();
    }

    /** Proteins of one request, and who waits for their vectors. */
    private record Request(List<String> proteins, long tokens, CompletableFuture<List<float[]>> answer) {}

    /** Wakes the thread at the end. */
    private static final Request END = new Request(List.of(), 0, new CompletableFuture<>());

    private final BlockingQueue<Request> waiting;
    private final int batchTokens;
    private final Thread thread;
    private final CompletableFuture<Void> opened = new CompletableFuture<>();
    private final Object lock = new Object();
    private boolean ending;
    private long batches;

    /**
     * Starts the thread, and waits until the model is there.
     *
     * @param open makes the model, on the thread
     */
    DeviceThread(Supplier<? extends Embedder> open, int batchTokens, int waiting) {
        this.batchTokens = batchTokens;
        this.waiting = new ArrayBlockingQueue<>(waiting + 1); // and one for the end
        thread = Thread.ofPlatform().name("device").start(() -> run(open));
        opened.join();
    }

    /**
     * Returns the vectors of proteins, later.
     *
     * @throws RejectedExecutionException when as many requests wait as may
     * @throws IllegalStateException when the service ends
     */
    CompletableFuture<List<float[]>> submit(List<String> proteins) {
        long tokens =
                proteins.stream().mapToLong(protein -> protein.length() + 2L).sum();
        Request request = new Request(proteins, tokens, new CompletableFuture<>());
        synchronized (lock) {
            if (ending || !thread.isAlive()) {
                throw new IllegalStateException("the service ends");
            }
            if (waiting.remainingCapacity() <= 1 || !waiting.offer(request)) {
                throw new RejectedExecutionException("too many requests wait");
            }
        }
        return request.answer();
    }

    /** Returns how many batches were computed. */
    long batches() {
        synchronized (lock) {
            return batches;
        }
    }

    private void run(Supplier<? extends Embedder> open) {
        try (Embedder embedder = open.get()) {
            opened.complete(null);
            Request next = waiting.take();
            while (next != END) {
                next = compute(embedder, next);
            }
        } catch (InterruptedException | RuntimeException | Error failure) {
            opened.completeExceptionally(failure);
            refuseAll(failure);
        }
    }

    /** Computes a batch that begins with {@code first}, and returns what comes after it. */
    private Request compute(Embedder embedder, Request first) throws InterruptedException {
        List<Request> batch = new ArrayList<>();
        List<String> proteins = new ArrayList<>();
        long tokens = 0;
        @Nullable Request next = first;
        while (next != null && next != END && (batch.isEmpty() || tokens + next.tokens() <= batchTokens)) {
            if (!next.answer().isDone()) { // Whoever asked may have gone.
                batch.add(next);
                proteins.addAll(next.proteins());
                tokens += next.tokens();
            }
            next = waiting.poll();
        }
        if (!batch.isEmpty()) {
            try {
                answer(batch, embedder.embed(proteins));
            } catch (RuntimeException | Error failure) {
                batch.forEach(request -> request.answer().completeExceptionally(failure));
                if (next != null) {
                    next.answer().completeExceptionally(failure);
                }
                throw failure;
            }
        }
        return next == null ? waiting.take() : next;
    }

    private void answer(List<Request> batch, List<float[]> vectors) {
        synchronized (lock) {
            batches++;
        }
        int from = 0;
        for (Request request : batch) {
            int to = from + request.proteins().size();
            request.answer().complete(List.copyOf(vectors.subList(from, to)));
            from = to;
        }
    }

    private void refuseAll(Throwable failure) {
        List<Request> left = new ArrayList<>();
        synchronized (lock) {
            ending = true;
            waiting.drainTo(left);
        }
        left.forEach(request -> request.answer().completeExceptionally(failure));
    }

    /** Refuses requests from now on, computes those that wait, and ends the thread. */
    @Override
    public void close() {
        synchronized (lock) {
            if (!ending) {
                ending = true;
                waiting.add(END);
            }
        }
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                TimeUnit.SECONDS.timedJoin(thread, 1);
            } catch (InterruptedException e) {
                interrupted = true;
                thread.interrupt();
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
