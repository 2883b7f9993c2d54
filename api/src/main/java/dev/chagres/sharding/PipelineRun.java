package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassObserver.Direction;
import dev.chagres.nccl.Communicator;
import dev.chagres.sharding.PipelineSchedule.Call;
import dev.chagres.sharding.PipelineSchedule.End;
import dev.chagres.sharding.PipelineSchedule.Exchange;
import dev.chagres.sharding.PipelineSchedule.Step;
import dev.chagres.sharding.PipelineSchedule.Transfer;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Runs the schedule of one rank of a pipeline: its calls, and the transfers between.
 *
 * <p>Inputs and outputs lie in the memory of their pass, which lasts until its backward call has been made. Gradients lie here.
 *
 * <p>Threading: the device's thread.
 */
final class PipelineRun implements AutoCloseable {
    private final PipelinePlan plan;
    private final DType dtype;
    private final long width;
    private final Communicator ranks;
    private final Stream stream;
    private final List<Pass> passes;
    private final PipelineDraws draws;
    private final boolean[] inputLearns;
    /** By pass. */
    private final @Nullable Tensor[] inputs;

    private final @Nullable Tensor[] outputs;
    private final Scope room;
    /** The gradient of an output, which the next backward call reads. */
    private @Nullable Tensor received;
    /** By place: gradients of inputs, which are sent. */
    private @Nullable Tensor[] given = new Tensor[0];
    /** Memory of those. */
    private @Nullable Tensor[] gradients = new Tensor[0];

    private @Nullable Tensor receiving;
    private @Nullable Exchange exchange;
    private final Runnable transfers = this::transfer;

    PipelineRun(PipelinePlan plan, DType dtype, long width, Communicator ranks, Stream stream, List<Pass> passes) {
        this.plan = plan;
        this.dtype = dtype;
        this.width = width;
        this.ranks = ranks;
        this.stream = stream;
        this.passes = passes;
        inputs = new Tensor[passes.size()];
        outputs = new Tensor[passes.size()];
        inputLearns = new boolean[plan.stages()];
        for (int stage = 0; stage < inputLearns.length; stage++) {
            inputLearns[stage] = plan.learnsBefore(stage);
        }
        room = stream.device().openScope(stream);
        draws = new PipelineDraws(plan, ranks, stream);
    }

    /** Checks what does not depend on other ranks, and takes memory; enqueues nothing that other ranks wait for. */
    void prepare(PipelineSchedule schedule, PipelineStage stage) {
        if (Inside.capture(stream) != null) {
            throw new CaptureException("run: expected a stream that does not capture, got " + stream
                    + "; steps of a pipeline are enqueued one by one");
        }
        long most = 0;
        for (int i = 0; i < schedule.microBatches(); i++) {
            most = Math.max(most, tokens(stage, i));
        }
        takeGradients(schedule.places(ranks.rank()), most);
    }

    void run(PipelineSchedule schedule, PipelineStage stage) {
        List<Step> steps = schedule.of(ranks.rank());
        for (int i = 0; i < steps.size(); i++) {
            switch (steps.get(i)) {
                case Exchange next -> exchange(next, stage);
                case Call call when call.direction() == Direction.FORWARD -> forward(call, stage);
                case Call call -> backward(call, stage);
            }
        }
        draws.learned();
    }

    private static long tokens(PipelineStage stage, int microBatch) {
        long tokens = stage.tokens(microBatch);
        if (tokens < 1) {
            throw new IllegalArgumentException(
                    "tokens: expected at least 1 in micro-batch " + microBatch + ", got " + tokens);
        }
        return tokens;
    }

    private void takeGradients(int places, long tokens) {
        room.restart();
        if (gradients.length < places) {
            gradients = new Tensor[places];
            given = new Tensor[places];
        }
        receiving = room.tensor(dtype, tokens, width);
        for (int i = 0; i < places; i++) {
            gradients[i] = room.tensor(dtype, tokens, width);
        }
    }

    private void forward(Call call, PipelineStage stage) {
        int number = call.stage();
        Pass pass = passes.get(call.pass());
        if (number == 0) {
            pass.begin();
        }
        boolean last = number == plan.stages() - 1;
        Tensor y = last ? null : pass.scope().tensor(dtype, tokens(stage, call.microBatch()), width);
        outputs[call.pass()] = y;
        draws.begin(number, pass);
        stage.forward(number, call.microBatch(), number == 0 ? null : inputs[call.pass()], y, pass);
        draws.end(number, pass);
    }

    private void backward(Call call, PipelineStage stage) {
        int number = call.stage();
        boolean last = number == plan.stages() - 1;
        Tensor dx = null;
        if (number > 0) {
            Tensor whole = Checks.given("gradients", gradients[call.place()]);
            dx = room.view(whole, 0, tokens(stage, call.microBatch()), width);
            given[call.place()] = dx;
        }
        stage.backward(number, call.microBatch(), last ? null : received, dx, passes.get(call.pass()));
        if (dx != null && !inputLearns[number]) {
            dx.zero(stream);
        }
    }

    /** Makes room for what is received, and enqueues all transfers. */
    private void exchange(Exchange next, PipelineStage stage) {
        List<Transfer> all = next.transfers();
        for (int i = 0; i < all.size(); i++) {
            Transfer transfer = all.get(i);
            if (transfer.end() == End.RECEIVER) {
                prepare(transfer.call(), stage);
            }
        }
        exchange = next;
        Communicator.group(transfers);
    }

    private void prepare(Call call, PipelineStage stage) {
        long tokens = tokens(stage, call.microBatch());
        if (call.direction() == Direction.BACKWARD) {
            received = room.view(Checks.given("receiving", receiving), 0, tokens, width);
            return;
        }
        Pass pass = passes.get(call.pass());
        pass.begin();
        Tensor x = pass.scope().tensor(dtype, tokens, width);
        if (!inputLearns[call.stage()]) {
            x.stopGradient();
        }
        inputs[call.pass()] = x;
    }

    private void transfer() {
        List<Transfer> all = Checks.given("exchange", exchange).transfers();
        for (int i = 0; i < all.size(); i++) {
            Transfer transfer = all.get(i);
            Call call = transfer.call();
            boolean forward = call.direction() == Direction.FORWARD;
            if (transfer.end() == End.SENDER) {
                Tensor result = forward ? outputs[call.pass()] : given[call.place()];
                ranks.send(Checks.given("result", result), transfer.peer(), stream);
                if (forward) {
                    draws.send(call, transfer.peer());
                }
            } else {
                Tensor argument = forward ? inputs[call.pass()] : received;
                ranks.receive(Checks.given("argument", argument), transfer.peer(), stream);
                if (forward) {
                    draws.receive(call, transfer.peer());
                }
            }
        }
    }

    @Override
    public void close() {
        draws.close();
        room.close();
    }
}
