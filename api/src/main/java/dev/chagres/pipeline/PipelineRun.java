package dev.chagres.pipeline;

import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.nccl.Communicator;
import dev.chagres.pipeline.PipelineSchedule.Call;
import dev.chagres.pipeline.PipelineSchedule.End;
import dev.chagres.pipeline.PipelineSchedule.Exchange;
import dev.chagres.pipeline.PipelineSchedule.Step;
import dev.chagres.pipeline.PipelineSchedule.Transfer;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Runs the schedule of one rank of a pipeline: its calls, and the transfers between. Subclasses for training and evaluation say what a call
 * does, and where its input and result lie.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class PipelineRun implements AutoCloseable permits PipelineTraining, PipelineEvaluation {
    final PipelineRank rank;
    /** By number of micro-batches. */
    private final List<PipelineSchedule> schedules = new ArrayList<>();

    private @Nullable Exchange exchange;
    private final Runnable transfers = this::transfer;

    PipelineRun(PipelineRank rank) {
        this.rank = rank;
    }

    /** Returns the method of {@link PipelineParallel} that runs this, for errors. */
    abstract String method();

    /** Returns the name of this kind of run, with its article, for errors. */
    abstract String name();

    /** Makes the schedule of so many micro-batches. */
    abstract PipelineSchedule make(int microBatches);

    /** Takes memory for a run whose longest micro-batch has {@code tokens}. */
    abstract void take(PipelineSchedule schedule, long tokens);

    /** Compares, before any transfer, what all ranks must have in common; returns what to throw on all of them, or null. */
    @Nullable
    RuntimeException difference() {
        return null;
    }

    /** Makes room for the input of {@code call} from another rank. */
    abstract void expect(Call call, long tokens);

    /** Returns the input of {@code call} from another rank, after {@link #expect}. */
    abstract Tensor argument(Call call);

    /** Makes a call. */
    abstract void compute(Call call, PipelineStage stage);

    /** Returns the result of {@code call}, for another rank. */
    abstract Tensor result(Call call);

    /** In a group: the result of {@code call} was sent. By default nothing is sent with it. */
    void sent(Call call, int peer) {}

    /** In a group: the argument of {@code call} was received. */
    void received(Call call, int peer) {}

    /** All steps were enqueued. */
    void done() {}

    /** The run has failed. */
    abstract void forget();

    /** Returns the schedule of so many micro-batches. */
    final PipelineSchedule schedule(int microBatches) {
        for (int i = 0; i < schedules.size(); i++) {
            if (schedules.get(i).microBatches() == microBatches) {
                return schedules.get(i);
            }
        }
        PipelineSchedule made = make(microBatches);
        schedules.add(made);
        return made;
    }

    /** Makes the checks that do not depend on other ranks, and allocates; enqueues nothing that other ranks wait for. */
    final void prepare(PipelineSchedule schedule, PipelineStage stage) {
        if (Inside.capture(rank.stream()) != null) {
            throw new CaptureException(method() + ": expected a stream that does not capture, got " + rank.stream()
                    + "; steps of a pipeline are enqueued one by one");
        }
        long most = 0;
        for (int i = 0; i < schedule.microBatches(); i++) {
            most = Math.max(most, tokens(stage, i));
        }
        take(schedule, most);
    }

    final void run(PipelineSchedule schedule, PipelineStage stage) {
        List<Step> steps = schedule.of(rank.ranks().rank());
        for (int i = 0; i < steps.size(); i++) {
            switch (steps.get(i)) {
                case Exchange next -> exchange(next, stage);
                case Call call -> compute(call, stage);
            }
        }
        done();
    }

    static long tokens(PipelineStage stage, int microBatch) {
        long tokens = stage.tokens(microBatch);
        if (tokens < 1) {
            throw new IllegalArgumentException(
                    "tokens: expected at least 1 in micro-batch " + microBatch + ", got " + tokens);
        }
        return tokens;
    }

    /** Makes room for received tensors, and enqueues all transfers. */
    private void exchange(Exchange next, PipelineStage stage) {
        List<Transfer> all = next.transfers();
        for (int i = 0; i < all.size(); i++) {
            Transfer transfer = all.get(i);
            if (transfer.end() == End.RECEIVER) {
                expect(transfer.call(), tokens(stage, transfer.call().microBatch()));
            }
        }
        exchange = next;
        Communicator.group(transfers);
    }

    private void transfer() {
        List<Transfer> all = Checks.given("exchange", exchange).transfers();
        for (int i = 0; i < all.size(); i++) {
            Transfer transfer = all.get(i);
            Call call = transfer.call();
            if (transfer.end() == End.SENDER) {
                rank.ranks().send(result(call), transfer.peer(), rank.stream());
                sent(call, transfer.peer());
            } else {
                rank.ranks().receive(argument(call), transfer.peer(), rank.stream());
                received(call, transfer.peer());
            }
        }
    }

    @Override
    public abstract void close();
}
