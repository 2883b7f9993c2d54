package dev.chagres.pipeline;

import dev.chagres.pass.PassObserver.Direction;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * The order of the calls of each rank of a pipeline.
 *
 * <p>Threading: immutable.
 */
record PipelineOrders(int ranks, int stagesPerRank, int microBatches) {
    /** Forward or backward of a micro-batch through a stage of the whole model. */
    record Work(Direction direction, int stage, int microBatch) {}

    /** Returns the order of each rank in training. */
    static List<List<Work>> of(int ranks, int stagesPerRank, int microBatches) {
        PipelineOrders orders = new PipelineOrders(ranks, stagesPerRank, microBatches);
        return IntStream.range(0, ranks).mapToObj(orders::of).toList();
    }

    /** Returns the order of each rank in evaluation: that of its forward calls in training. */
    static List<List<Work>> forward(int ranks, int stagesPerRank, int microBatches) {
        PipelineOrders orders = new PipelineOrders(ranks, stagesPerRank, microBatches);
        return IntStream.range(0, ranks).mapToObj(orders::forward).toList();
    }

    /**
     * Returns how many forward calls a rank makes, skipped ones included: the interleaved order has groups of as many micro-batches as
     * there are ranks, and skips those of an incomplete group.
     */
    private int count() {
        int groups = (microBatches + ranks - 1) / ranks;
        return stagesPerRank == 1 ? microBatches : stagesPerRank * groups * ranks;
    }

    private List<Work> forward(int rank) {
        List<Work> order = new ArrayList<>();
        for (int i = 0; i < count(); i++) {
            add(forward(rank, i), order);
        }
        return order;
    }

    private List<Work> of(int rank) {
        int count = count();
        int first = Math.min(forwardsBeforeBackward(ranks, stagesPerRank, rank), count);
        List<Work> order = new ArrayList<>();
        for (int i = 0; i < count + first; i++) {
            if (i < count) {
                add(forward(rank, i), order);
            }
            if (i >= first) {
                add(backward(rank, i - first), order);
            }
        }
        return order;
    }

    private void add(Work work, List<Work> order) {
        if (work.microBatch() < microBatches) {
            order.add(work);
        }
    }

    /** Returns how many forward calls a rank makes before forward and backward alternate. */
    static int forwardsBeforeBackward(int ranks, int stagesPerRank, int rank) {
        return stagesPerRank == 1 ? ranks - rank - 1 : 2 * (ranks - rank - 1) + (stagesPerRank - 1) * ranks;
    }

    private Work forward(int rank, int call) {
        return new Work(Direction.FORWARD, turn(call) * ranks + rank, microBatch(call));
    }

    private Work backward(int rank, int call) {
        int turn = stagesPerRank - 1 - turn(call);
        return new Work(Direction.BACKWARD, turn * ranks + rank, microBatch(call));
    }

    /** Returns the stage of a call among the rank's: each takes as many micro-batches in turn as there are ranks. */
    private int turn(int call) {
        return stagesPerRank == 1 ? 0 : call / ranks % stagesPerRank;
    }

    private int microBatch(int call) {
        return stagesPerRank == 1 ? call : call / (ranks * stagesPerRank) * ranks + call % ranks;
    }
}
