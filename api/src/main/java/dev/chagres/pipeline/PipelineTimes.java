package dev.chagres.pipeline;

import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pipeline.PipelineOrders.Work;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A timetable of a pipeline in which every call takes the same time, and begins as early as its order and its input allow.
 *
 * <p>Transfers are placed by these times, on both ends before the call that needs them. So every rank makes its exchanges in the order of
 * time, and both ends of a transfer at the same time: ranks cannot deadlock, however long calls really take.
 *
 * <p>Threading: immutable.
 */
final class PipelineTimes {
    private static final int NEVER = Integer.MAX_VALUE;

    private final List<List<Work>> orders;
    private final int ranks;
    private final int stages;
    private final int microBatches;
    /** By direction, stage and micro-batch. */
    private final int[] times;

    PipelineTimes(List<List<Work>> orders, int stages, int microBatches) {
        this.orders = orders;
        ranks = orders.size();
        this.stages = stages;
        this.microBatches = microBatches;
        times = new int[2 * stages * microBatches];
        Arrays.fill(times, NEVER);
        run();
    }

    private void run() {
        int[] next = new int[ranks];
        int left = orders.stream().mapToInt(List::size).sum();
        for (int time = 0; left > 0; time++) {
            int before = left;
            for (int rank = 0; rank < ranks; rank++) {
                List<Work> order = orders.get(rank);
                if (next[rank] < order.size() && isReady(order.get(next[rank]), time)) {
                    times[index(order.get(next[rank]++))] = time;
                    left--;
                }
            }
            if (left == before) {
                throw new IllegalStateException("the orders of the pipeline's ranks wait for each other");
            }
        }
    }

    private boolean isReady(Work work, int time) {
        Work source = source(work);
        return source == null || times[index(source)] < time;
    }

    /** Returns the work of another rank whose result {@code work} needs, or null. */
    @Nullable
    Work source(Work work) {
        boolean forward = work.direction() == Direction.FORWARD;
        int stage = work.stage() + (forward ? -1 : 1);
        return stage < 0 || stage == stages ? null : new Work(work.direction(), stage, work.microBatch());
    }

    /** Returns the work of another rank that needs the result of {@code work}, or null. */
    @Nullable
    Work target(Work work) {
        boolean forward = work.direction() == Direction.FORWARD;
        int stage = work.stage() + (forward ? 1 : -1);
        return stage < 0 || stage == stages ? null : new Work(work.direction(), stage, work.microBatch());
    }

    /** Returns when {@code work} is computed. */
    int of(Work work) {
        return times[index(work)];
    }

    /** Returns a unique number of {@code work}, by which both ends order transfers. */
    int index(Work work) {
        int direction = work.direction() == Direction.FORWARD ? 0 : 1;
        return (direction * stages + work.stage()) * microBatches + work.microBatch();
    }

    List<Work> order(int rank) {
        return orders.get(rank);
    }

    int rank(Work work) {
        return work.stage() % ranks;
    }
}
