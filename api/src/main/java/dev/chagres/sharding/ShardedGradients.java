package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.ops.Elementwise;
import dev.chagres.sharding.GroupBuffers.Buffer;
import dev.chagres.sharding.GroupBuffers.Content;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Gradients of which each rank keeps the sum of a part: backward writes those of a group whole, and they are reduced and scattered on a
 * stream and with a communicator of their own.
 *
 * <p>Stages 1 and 2 reduce each group once a step, the last declared first, on every rank alike. Stage 3 reduces a group in each
 * micro-batch, in the order in which backward completes them.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedGradients implements AutoCloseable {
    /** One is written while the other is reduced. */
    private static final int BUFFERS = 2;

    private final Parameters parameters;
    private final Communicator communicator;
    private final ZeroStage stage;
    private final Stream compute;
    private final Stream reductions;
    private final Event written;
    private final Event summed;
    private final GroupBuffers buffers;
    /** By group, this rank's part of each trained piece. */
    private final List<List<Tensor>> parts = new ArrayList<>();

    private final Scope scope;
    /** What a later micro-batch adds to a part; made when one does. */
    private @Nullable Tensor addend;

    private final BitSet complete = new BitSet();
    private final BitSet reduced = new BitSet();
    private int next;
    private final ByteCounts bytes;

    ShardedGradients(Parameters parameters, Communicator communicator, ZeroStage stage, ByteCounts bytes) {
        this.bytes = bytes;
        this.parameters = parameters;
        this.communicator = communicator;
        this.stage = stage;
        compute = parameters.scope().stream();
        reductions = compute.device().openStream();
        written = compute.device().openEvent();
        summed = compute.device().openEvent();
        scope = compute.device().openScope(compute);
        buffers = new GroupBuffers(parameters, Content.GRADIENTS, stage == ZeroStage.ONE ? Integer.MAX_VALUE : BUFFERS);
        int ranks = communicator.ranks();
        for (int group = 0; group < parameters.sharing().groups().size(); group++) {
            List<Tensor> own = new ArrayList<>();
            for (GroupPiece piece : buffers.pieces(group)) {
                long offset = piece.gradientOffset() / ranks;
                own.add(parameters.scope().view(parameters.gradients(), offset, piece.count() / ranks));
            }
            parts.add(own);
        }
        next = parts.size() - 1;
    }

    private boolean isTrained(int group) {
        return !parts.get(group).isEmpty();
    }

    /** Returns whether {@code group} was reduced for the last time in this step. */
    boolean isSummed(int group) {
        return stage != ZeroStage.THREE && reduced.get(group);
    }

    /** Sees that {@code group} has memory for its whole gradients. */
    void write(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            buffer = buffers.take(group);
        }
        if (buffer.pins == 0) {
            buffer.pins = 1;
            compute.await(buffer.free);
        }
    }

    /** Says that no later backward call of this micro-batch, the step's last in stages 1 and 2, writes gradients of {@code group}. */
    void complete(int group) {
        if (stage == ZeroStage.THREE) {
            Buffer buffer = buffers.held(group);
            if (buffer != null && buffer.pins > 0) {
                reduce(group);
            }
            return;
        }
        complete.set(group);
        while (next >= 0 && (!isTrained(next) || complete.get(next))) {
            reduceNext();
        }
    }

    private void reduceNext() {
        int group = next--;
        if (isTrained(group)) {
            reduce(group);
        }
    }

    private void reduce(int group) {
        write(group);
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            return;
        }
        parameters.sharing().completeGradients(group);
        written.record(compute);
        reductions.await(written);
        List<Tensor> own = parts.get(group);
        for (int i = 0; i < own.size(); i++) {
            scatter(buffer.vector(i), own.get(i), reduced.get(group) ? Output.ADD : Output.OVERWRITE);
        }
        buffer.free.record(reductions);
        reduced.set(group);
        if (stage == ZeroStage.ONE) {
            buffers.letGo(buffer);
        } else {
            buffers.takeBack(buffer);
            parameters.sharing().forgetGradients(group);
        }
    }

    private void scatter(Tensor whole, Tensor part, Output output) {
        bytes.reduceScatter(whole);
        if (output == Output.OVERWRITE) {
            communicator.reduceScatter(whole, part, Reduction.SUM, reductions);
            return;
        }
        Tensor room = addend;
        if (room == null) {
            long most = parts.stream()
                    .flatMap(List::stream)
                    .mapToLong(Tensor::count)
                    .max()
                    .orElse(0);
            room = scope.tensor(DType.FLOAT32, most);
            addend = room;
        }
        try (Scope views = scope.open()) {
            Tensor sum = views.view(room, 0, part.count());
            communicator.reduceScatter(whole, sum, Reduction.SUM, reductions);
            Elementwise.accumulate(sum, part, Output.ADD, reductions);
        }
    }

    /** Reduces what is left, and lets later work of the computing stream wait for all sums. */
    void finish() {
        if (stage == ZeroStage.THREE) {
            for (int group = parts.size() - 1; group >= 0; group--) {
                complete(group);
                if (isTrained(group) && !reduced.get(group)) {
                    parts.get(group).forEach(part -> part.zero(compute));
                }
            }
        }
        while (stage != ZeroStage.THREE && next >= 0) {
            reduceNext();
        }
        await();
    }

    private void await() {
        summed.record(reductions);
        compute.await(summed);
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        await(); // What is under way reads buffers that the next backward overwrites.
        for (int group = 0; group < parts.size(); group++) {
            Buffer buffer = buffers.held(group);
            if (buffer != null && buffer.pins > 0) {
                buffers.letGo(buffer);
            }
        }
        next = parts.size() - 1;
        complete.clear();
        reduced.clear();
    }

    long byteSize() {
        return buffers.byteSize();
    }

    @Override
    public void close() {
        reductions.close();
        written.close();
        summed.close();
        buffers.close();
        scope.close();
    }
}
