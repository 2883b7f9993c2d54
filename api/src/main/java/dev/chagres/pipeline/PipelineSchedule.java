package dev.chagres.pipeline;

import dev.chagres.internal.Checks;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pipeline.PipelineOrders.Work;
import dev.chagres.pipeline.PipelineSteps.PipelineTimes;
import java.util.ArrayList;
import java.util.List;

/**
 * The calls of each rank of a pipeline in a step or an evaluation, in order: forward and backward of micro-batches, and the transfers
 * between.
 *
 * <p>The layers of a model are divided into S consecutive stages; with P ranks, rank r has the stages r, r + P, … A micro-batch goes
 * forward through stages 0 to S - 1 and backward through the same in reverse.
 *
 * <p>With one stage per rank the order is 1F1B: rank r first computes forward of P - r - 1 micro-batches, then alternately forward of one
 * and backward of the oldest in flight, then the remaining backward calls. So it has at most P - r micro-batches in flight, for any number
 * of micro-batches. With several stages per rank the order is the interleaved one, in which ranks wait less but have more transfers and
 * more micro-batches in flight: groups of P micro-batches go through a rank's first stage, then through its second, and so on.
 *
 * <p>An evaluation has the same forward calls in the same order, and no backward calls. No rank keeps tensors for backward calls, so one
 * pass is enough.
 *
 * <p>A transfer comes directly before the call that needs the received tensor, on the receiving rank and on the sending rank. All transfers
 * of a rank at that place form one {@link Exchange}, so that no order of sends and receives can deadlock two ranks.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM (2021).
 */
public final class PipelineSchedule {
    private static final int MOST_STAGES = 4096;
    /** A schedule contains the calls of all ranks, some hundred bytes each. */
    private static final int MOST_CALLS = 1 << 20;

    /** A step of a rank. */
    public sealed interface Step permits Call, Exchange {}

    /**
     * Forward or backward of a micro-batch through a stage.
     *
     * @param direction forward or backward
     * @param stage from 0 on, of the whole model
     * @param microBatch from 0 on
     * @param pass which of the rank's passes is used, from 0 on
     * @param place the index of the rank's buffer for the result, from 0 on: for backward the gradient of the input, for forward in an
     *     evaluation the output; in training outputs are in the pass
     */
    public record Call(Direction direction, int stage, int microBatch, int pass, int place) implements Step {
        /** Checks that the direction is there. */
        public Call {
            Checks.given("direction", direction);
        }
    }

    /**
     * Sends and receives in one NCCL group.
     *
     * @param transfers in the same order on both ends
     */
    public record Exchange(List<Transfer> transfers) implements Step {
        /** Copies the list. */
        public Exchange {
            transfers = Checks.givenAll("transfers", transfers);
        }
    }

    /** The end of a transfer that a rank is at. */
    public enum End {
        /** The rank sends. */
        SENDER,
        /** The rank receives. */
        RECEIVER
    }

    /**
     * The output of a stage on its way to the next one, or the gradient of a stage's input on its way to the one before.
     *
     * @param end which end this rank is
     * @param peer the rank at the other end
     * @param call the call of this rank that has computed the sent tensor, or that reads the received tensor
     */
    public record Transfer(End end, int peer, Call call) {
        /** Checks that both are there. */
        public Transfer {
            Checks.given("end", end, "call", call);
        }
    }

    private final int ranks;
    private final int stages;
    private final int microBatches;
    private final List<List<Step>> steps;
    private final List<Integer> passes;
    private final List<Integer> places;
    private final String order;

    private PipelineSchedule(List<List<Work>> orders, int stages, int microBatches, String order) {
        ranks = orders.size();
        this.order = order;
        this.stages = stages;
        this.microBatches = microBatches;
        PipelineTimes times = new PipelineTimes(orders, stages, microBatches);
        List<PipelineSteps> made = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            made.add(new PipelineSteps(times, rank));
        }
        steps = made.stream().map(PipelineSteps::steps).toList();
        passes = made.stream().map(PipelineSteps::passes).toList();
        places = made.stream().map(PipelineSteps::places).toList();
    }

    /**
     * Makes the schedule of a step.
     *
     * @param ranks P
     * @param stagesPerRank 1 for 1F1B, more for the interleaved order
     * @param microBatches of the step; with several stages a rank best a multiple of P
     * @throws IllegalArgumentException when a number is not positive, a single rank is to have several stages, or all ranks together
     *     would have more than 4096 stages or make more than 2^20 calls
     */
    public static PipelineSchedule of(int ranks, int stagesPerRank, int microBatches) {
        requireRanks(ranks, stagesPerRank);
        int stages = ranks * stagesPerRank;
        requireMicroBatches(stages, microBatches, MOST_CALLS / (2 * stages), "a step", "forward and backward calls");
        List<List<Work>> orders = PipelineOrders.of(ranks, stagesPerRank, microBatches);
        return new PipelineSchedule(orders, stages, microBatches, stagesPerRank == 1 ? "1F1B" : "interleaved");
    }

    /**
     * Makes the schedule of an evaluation, which computes forward only.
     *
     * @param ranks P
     * @param stagesPerRank as in training
     * @param microBatches of the evaluation; with several stages a rank best a multiple of P
     * @throws IllegalArgumentException as {@link #of} does; twice as many micro-batches are allowed
     */
    public static PipelineSchedule evaluation(int ranks, int stagesPerRank, int microBatches) {
        requireRanks(ranks, stagesPerRank);
        int stages = ranks * stagesPerRank;
        requireMicroBatches(stages, microBatches, MOST_CALLS / stages, "an evaluation", "forward calls");
        List<List<Work>> orders = PipelineOrders.forward(ranks, stagesPerRank, microBatches);
        return new PipelineSchedule(orders, stages, microBatches, "forward alone");
    }

    static void requireRanks(int ranks, int stagesPerRank) {
        Checks.atLeastOne("ranks", ranks);
        Checks.atLeastOne("stagesPerRank", stagesPerRank);
        if (ranks == 1 && stagesPerRank > 1) {
            throw new IllegalArgumentException("stagesPerRank: expected 1 on a single rank, got " + stagesPerRank);
        }
        long stages = (long) ranks * stagesPerRank;
        if (stages > MOST_STAGES) {
            throw new IllegalArgumentException("ranks, stagesPerRank: expected at most " + MOST_STAGES
                    + " stages in all, got " + stages + ", " + stagesPerRank + " on each of " + ranks);
        }
    }

    private static void requireMicroBatches(int stages, int microBatches, int most, String what, String calls) {
        Checks.atLeastOne("microBatches", microBatches);
        if (microBatches > most) {
            throw new IllegalArgumentException("microBatches: expected at most " + most + " through " + stages
                    + (stages == 1 ? " stage" : " stages") + ", for " + what + " has at most " + MOST_CALLS + " "
                    + calls
                    + ", got " + microBatches);
        }
    }

    /** Returns the number of ranks. */
    public int ranks() {
        return ranks;
    }

    /** Returns the number of stages of all ranks. */
    public int stages() {
        return stages;
    }

    /** Returns the number of micro-batches. */
    public int microBatches() {
        return microBatches;
    }

    /**
     * Returns the steps of a rank, in order.
     *
     * @throws IndexOutOfBoundsException when there is no such rank
     */
    public List<Step> of(int rank) {
        return steps.get(existing(rank));
    }

    /**
     * Returns the most micro-batches, over all stages of the rank, for which it has computed forward and not yet backward; 1 for an
     * evaluation.
     *
     * @throws IndexOutOfBoundsException when there is no such rank
     */
    public int passes(int rank) {
        return passes.get(existing(rank));
    }

    /**
     * Returns the most results that a rank has computed and not yet sent, without outputs in training: gradients of inputs, or outputs of
     * an evaluation.
     *
     * @throws IndexOutOfBoundsException when there is no such rank
     */
    public int places(int rank) {
        return places.get(existing(rank));
    }

    private int existing(int rank) {
        if (rank < 0 || rank >= ranks) {
            throw new IndexOutOfBoundsException(
                    "rank: expected that of one of " + ranks + " ranks, counted from 0, got " + rank);
        }
        return rank;
    }

    /** Returns the numbers of ranks, stages and micro-batches, and the order. */
    @Override
    public String toString() {
        return microBatches + " micro-batches through " + stages + " stages on " + ranks + " ranks, " + order;
    }
}
