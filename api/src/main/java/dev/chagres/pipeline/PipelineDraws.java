package dev.chagres.pipeline;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineSchedule.Call;

/**
 * Makes each stage of a pipeline draw the random numbers that it would draw on one rank, after the draws of earlier stages. Their number of
 * draws is sent with the first micro-batch of the first step, and must stay the same.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineDraws implements AutoCloseable {
    private static final long UNKNOWN = -1;

    private final Communicator ranks;
    private final Stream stream;
    private final Scope scope;
    /** By stage: the number of draws of the stages before it. */
    private final long[] before;
    /** By stage: the number of draws up to its end. */
    private final long[] after;
    /** The same, to be sent or received: INT64 [1] each. */
    private final Tensor[] arriving;

    private final Tensor[] leaving;
    private boolean known;

    PipelineDraws(PipelinePlan plan, Communicator ranks, Stream stream) {
        this.ranks = ranks;
        this.stream = stream;
        int stages = plan.stages();
        scope = stream.device().openScope(stream);
        Tensor all = scope.tensor(DType.INT64, 2, stages);
        before = new long[stages];
        after = new long[stages];
        arriving = new Tensor[stages];
        leaving = new Tensor[stages];
        for (int stage = 0; stage < stages; stage++) {
            arriving[stage] = scope.view(all, stage, 1);
            leaving[stage] = scope.view(all, (long) stages + stage, 1);
            before[stage] = stage == 0 ? 0 : UNKNOWN;
            after[stage] = UNKNOWN;
        }
    }

    private boolean travel(Call call) {
        return !known && call.microBatch() == 0;
    }

    /** In a group: sends the number of draws up to the end of the stage of {@code call}. */
    void send(Call call, int peer) {
        if (travel(call)) {
            ranks.send(leaving[call.stage()], peer, stream);
        }
    }

    /** In a group: receives the number of draws before the stage of {@code call}. */
    void receive(Call call, int peer) {
        if (travel(call)) {
            ranks.receive(arriving[call.stage()], peer, stream);
            before[call.stage()] = UNKNOWN;
        }
    }

    /** A stage's forward begins. */
    void begin(int stage, Pass pass) {
        if (before[stage] == UNKNOWN) {
            ranks.synchronize(stream);
            before[stage] = arriving[stage].toLongs(stream)[0];
        }
        pass.calls().skipDraws(before[stage]);
    }

    /** A stage's forward has ended. */
    void end(int stage, Pass pass) {
        long drawn = pass.calls().draws();
        if (after[stage] == UNKNOWN) {
            after[stage] = drawn;
            leaving[stage].set(stream, drawn);
        } else if (after[stage] != drawn) {
            throw new IllegalStateException("stage " + stage + ": expected " + (after[stage] - before[stage])
                    + " draws of random numbers, as in the first micro-batch, got " + (drawn - before[stage])
                    + "; later stages would draw other numbers than a single rank does");
        }
    }

    /** A whole step was run: later steps need not exchange the numbers. */
    void learned() {
        known = true;
    }

    @Override
    public void close() {
        scope.close();
    }
}
