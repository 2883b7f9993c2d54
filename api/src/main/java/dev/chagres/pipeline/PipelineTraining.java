package dev.chagres.pipeline;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ranks.SameOptimizers;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.pipeline.PipelineSchedule.Call;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Forward and backward of the micro-batches of a step.
 *
 * <p>Inputs and outputs lie in the memory of their pass, which lasts until its backward call has been made. Gradients lie in places.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineTraining extends PipelineRun {
    private final Parameters parameters;
    private final List<Pass> passes = new ArrayList<>();
    private final PipelineDraws draws;
    private final SameOptimizers optimizers;
    private final Runnable atForgetting = this::forgetting;
    /** Whether a stage computes, and whether it has forgotten gradients. */
    private boolean computing;

    private boolean forgotten;
    private final boolean[] inputLearns;
    /** By pass. */
    private final @Nullable Tensor[] inputs;

    private final @Nullable Tensor[] outputs;

    PipelineTraining(PipelineRank rank, Parameters parameters) {
        super(rank);
        this.parameters = parameters;
        PipelinePlan plan = rank.plan();
        int before = PipelineOrders.forwardsBeforeBackward(
                plan.ranks(), plan.stagesPerRank(), rank.ranks().rank());
        for (int i = 0; i <= before; i++) {
            passes.add(Pass.training(rank.stream()));
        }
        inputs = new Tensor[passes.size()];
        outputs = new Tensor[passes.size()];
        inputLearns = new boolean[plan.stages()];
        for (int stage = 0; stage < inputLearns.length; stage++) {
            inputLearns[stage] = plan.learnsBefore(stage);
        }
        draws = new PipelineDraws(plan, rank.ranks(), rank.stream());
        optimizers = SameOptimizers.ofModel(parameters, rank.ranks());
        parameters.atForgetting(atForgetting);
    }

    List<Pass> passes() {
        return List.copyOf(passes);
    }

    @Override
    String method() {
        return "run";
    }

    @Override
    String name() {
        return "a run";
    }

    @Override
    PipelineSchedule make(int microBatches) {
        return PipelineSchedule.of(rank.plan().ranks(), rank.plan().stagesPerRank(), microBatches);
    }

    @Override
    void take(PipelineSchedule schedule, long tokens) {
        rank.places().take(schedule.places(rank.ranks().rank()), tokens);
    }

    @Override
    @Nullable
    RuntimeException difference() {
        return optimizers.difference();
    }

    @Override
    void expect(Call call, long tokens) {
        if (call.direction() == Direction.BACKWARD) {
            rank.places().receive(tokens);
            return;
        }
        Pass pass = passes.get(call.pass());
        pass.begin();
        Tensor x = rank.places().tensor(pass.scope(), tokens);
        if (!inputLearns[call.stage()]) {
            x.stopGradient();
        }
        inputs[call.pass()] = x;
    }

    @Override
    Tensor argument(Call call) {
        return call.direction() == Direction.FORWARD
                ? Checks.given("input", inputs[call.pass()])
                : rank.places().received();
    }

    @Override
    void compute(Call call, PipelineStage stage) {
        if (call.direction() == Direction.FORWARD) {
            forward(call, stage);
        } else {
            backward(call, stage);
        }
    }

    private void forward(Call call, PipelineStage stage) {
        int number = call.stage();
        Pass pass = passes.get(call.pass());
        if (number == 0) {
            pass.begin();
        }
        Tensor y = rank.isLast(number) ? null : rank.places().tensor(pass.scope(), tokens(stage, call.microBatch()));
        outputs[call.pass()] = y;
        draws.begin(number, pass);
        lend(rank);
        try {
            stage.forward(number, call.microBatch(), number == 0 ? null : argument(call), y, pass);
        } finally {
            lend(null);
        }
        ensureKept(call, "forward", pass);
        draws.end(number, pass);
    }

    private void backward(Call call, PipelineStage stage) {
        int number = call.stage();
        Tensor dx = number == 0 ? null : rank.places().begin(call.place(), tokens(stage, call.microBatch()));
        Tensor dy = rank.isLast(number) ? null : argument(call);
        Pass pass = passes.get(call.pass());
        lend(rank);
        try {
            stage.backward(number, call.microBatch(), dy, dx, pass);
        } finally {
            lend(null);
        }
        ensureKept(call, "backward", pass);
        if (dx != null && !inputLearns[number]) {
            dx.zero(rank.stream());
        }
    }

    private void forgetting() {
        forgotten |= computing;
    }

    /** Checks that a stage has lost no gradients of this micro-batch or of earlier ones. */
    private void ensureKept(Call call, String direction, Pass pass) {
        if (forgotten || pass.calls().isIncomplete()) {
            throw new IllegalStateException("stage " + call.stage() + ": expected gradients kept in " + direction
                    + " of micro-batch " + call.microBatch() + ", got "
                    + (forgotten ? "a call of Parameters.forgetGradients()" : "a backward call that has failed")
                    + ", so that gradients of earlier micro-batches of the run would be missing; let exceptions leave"
                    + " the stage, and forget gradients between runs");
        }
    }

    /** A stage could also give back what its other micro-batches have saved. */
    private void lend(@Nullable PipelineRank pipeline) {
        computing = pipeline != null;
        for (int i = 0; i < passes.size(); i++) {
            passes.get(i).calls().lend(pipeline);
        }
    }

    @Override
    Tensor result(Call call) {
        return call.direction() == Direction.FORWARD
                ? Checks.given("output", outputs[call.pass()])
                : rank.places().result(call.place());
    }

    @Override
    void sent(Call call, int peer) {
        if (call.direction() == Direction.FORWARD) {
            draws.send(call, peer);
        }
    }

    @Override
    void received(Call call, int peer) {
        if (call.direction() == Direction.FORWARD) {
            draws.receive(call, peer);
        }
    }

    @Override
    void done() {
        draws.learned();
    }

    @Override
    void forget() {
        for (Pass pass : passes) {
            if (pass.isBegun()) {
                pass.end();
            }
        }
        parameters.forgetGradients();
        forgotten = false;
    }

    @Override
    public void close() {
        parameters.forget(atForgetting);
        draws.close();
        passes.reversed().forEach(Pass::close);
    }

    /**
     * Makes each stage of a pipeline draw the random numbers that it would draw on one rank, after the draws of earlier stages. Their number of
     * draws is sent with the first micro-batch of the first step, and must stay the same.
     */
    private static final class PipelineDraws implements AutoCloseable {
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
}
