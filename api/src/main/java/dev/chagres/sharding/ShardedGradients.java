package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.FlatBufferPool.Buffer;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Sharded gradients: backward writes the whole gradients of a group, which are reduce-scattered on a separate stream and communicator.
 *
 * <p>With {@link GradientSync#LAST_MICRO_BATCH} each group is reduced once a step, the last declared first; with {@link
 * GradientSync#EACH_MICRO_BATCH} in each micro-batch, in the order in which backward completes them.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedGradients implements AutoCloseable {
    /** Position of a micro-batch in its step. */
    enum MicroBatch {
        EARLIER,
        LAST
    }

    /** One is written while the other is reduced. */
    private static final int BUFFERS = 2;

    private final Parameters parameters;
    private final ZeroStage stage;
    private final GradientSync sync;
    private final Stream compute;
    private final Stream reductions;
    private final Event written;
    private final Event summed;
    private final UnshardedGradients content;
    private final FlatBufferPool buffers;
    /** By group, this rank's shard of each trained piece. */
    private final List<List<Tensor>> parts = new ArrayList<>();

    private final GradientReduceScatter sums;
    /** Null with one copy of the model, or if the optimizer's state is sharded among all ranks. */
    private final @Nullable ReplicaAllReduce copies;

    private final BitSet complete = new BitSet();
    private final BitSet reduced = new BitSet();
    private int next;

    ShardedGradients(Parameters parameters, ShardedRanks ranks, FullyShardedConfig config, ByteCounts bytes) {
        this.parameters = parameters;
        stage = config.stage();
        sync = config.gradientSync();
        compute = parameters.scope().stream();
        try (Opened opened = new Opened()) {
            reductions = opened.add(compute.device().openStream());
            written = opened.add(compute.device().openEvent());
            summed = opened.add(compute.device().openEvent());
            // Sums of micro-batches stay FP32.
            DType productType = sync == GradientSync.EACH_MICRO_BATCH ? config.reduceType() : DType.FLOAT32;
            content = new UnshardedGradients(parameters.access(), productType);
            Part part = ranks.shard(stage).updated();
            for (int group = 0; group < parameters.access().groups().size(); group++) {
                List<Tensor> own = new ArrayList<>();
                for (FlatParameter piece : content.pieces(group)) {
                    long offset = part.of(piece.gradientOffset());
                    own.add(parameters.scope().view(parameters.gradients(), offset, part.of(piece.count())));
                }
                parts.add(own);
            }
            next = parts.size() - 1;
            sums = opened.add(new GradientReduceScatter(ranks, config, content, parts, compute, reductions, bytes));
            int usual = stage == ZeroStage.ONE ? Integer.MAX_VALUE : BUFFERS;
            buffers = opened.add(new FlatBufferPool(parameters, content, usual, sums.windows()));
            Communicator others = ranks.splitsOptimizer() ? null : ranks.copies();
            copies = others == null ? null : new ReplicaAllReduce(compute, parts, config.reduceType(), others, bytes);
            opened.keep();
        }
    }

    /** Returns how gradients are really reduced. */
    GradientReduction made() {
        return sums.made();
    }

    private boolean isTrained(int group) {
        return !parts.get(group).isEmpty();
    }

    /** Returns whether {@code group} was reduced for the last time in this step. */
    boolean isSummed(int group) {
        return copies != null && copies.isSummed(group) || sync == GradientSync.LAST_MICRO_BATCH && reduced.get(group);
    }

    /** Gives {@code group} a buffer for its whole gradients. */
    void write(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            buffer = buffers.take(group);
            buffers.lend(group, buffer);
        }
        if (buffer.pins == 0) {
            buffer.pins = 1;
            compute.await(buffer.free);
        }
    }

    /**
     * Records that no later backward call of a micro-batch writes gradients of {@code group}; called for each micro-batch, or only for the
     * last.
     */
    void complete(int group, MicroBatch microBatch) {
        if (sync == GradientSync.EACH_MICRO_BATCH) {
            reduceWritten(group);
            if (copies != null && microBatch == MicroBatch.LAST && reduced.get(group) && !copies.isSummed(group)) {
                copies.sum(group, parts.get(group), reductions);
            }
            return;
        }
        complete.set(group);
        while (next >= 0 && (!isTrained(next) || complete.get(next))) {
            reduceNext();
        }
    }

    private void reduceWritten(int group) {
        Buffer buffer = buffers.held(group);
        if (buffer != null && buffer.pins > 0) {
            reduce(group);
        }
    }

    private void reduceNext() {
        int group = next--;
        if (isTrained(group)) {
            reduce(group);
            if (copies != null) {
                copies.sum(group, parts.get(group), reductions);
            }
        }
    }

    private void reduce(int group) {
        write(group);
        Buffer buffer = buffers.held(group);
        if (buffer == null) {
            return;
        }
        parameters.access().completeGradients(group);
        written.record(compute);
        reductions.await(written);
        content.castBeside(group, buffers.views(group, buffer), reductions);
        List<Tensor> own = parts.get(group);
        for (int i = 0; i < own.size(); i++) {
            sums.sum(buffer.vector(i), own.get(i), reduced.get(group) ? Output.ADD : Output.OVERWRITE);
        }
        buffer.free.record(reductions);
        reduced.set(group);
        if (copies != null) {
            copies.reduced(group);
        }
        giveBack(group, buffer);
    }

    /**
     * Records that the whole gradients of a group are no longer used. Stage 1 keeps them; in the others another group may take the buffer.
     */
    private void giveBack(int group, Buffer buffer) {
        if (stage == ZeroStage.ONE) {
            buffers.release(buffer);
        } else {
            buffers.takeBack(buffer);
            parameters.access().forgetGradients(group);
            parameters.access().takeBackGradients(group);
        }
    }

    /** Reduces the remaining groups, and makes later work of the computing stream wait for all sums. */
    void finish() {
        if (sync == GradientSync.EACH_MICRO_BATCH) {
            for (int group = parts.size() - 1; group >= 0; group--) {
                reduceWritten(group);
                if (isTrained(group) && !reduced.get(group)) {
                    parts.get(group).forEach(part -> part.zero(compute));
                }
            }
        }
        while (sync == GradientSync.LAST_MICRO_BATCH && next >= 0) {
            reduceNext();
        }
        if (copies != null) {
            copies.finish(parts, reductions);
        }
        await();
    }

    private void await() {
        summed.record(reductions);
        compute.await(summed);
        if (copies != null) {
            copies.await(compute);
        }
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        await(); // Sums in progress read buffers that the next backward overwrites.
        for (int group = 0; group < parts.size(); group++) {
            Buffer buffer = buffers.held(group);
            if (buffer != null && buffer.pins > 0) {
                giveBack(group, buffer);
            }
        }
        next = parts.size() - 1;
        complete.clear();
        reduced.clear();
        if (copies != null) {
            copies.restart();
        }
    }

    long byteSize() {
        return buffers.byteSize() + sums.byteSize() + (copies == null ? 0 : copies.byteSize());
    }

    /** Throws if an enqueued sum has failed. */
    void check() {
        sums.check();
        if (copies != null) {
            copies.check();
        }
    }

    @Override
    public void close() {
        reductions.close();
        written.close();
        summed.close();
        buffers.close();
        if (copies != null) {
            copies.close();
        }
        sums.close();
    }

    /**
     * All-reduces over copies of a model the gradient shards that each copy has reduced, once a step, on a separate stream and communicator.
     *
     * <p>Groups are summed in the order of their last reductions, which is the same on every rank.
     */
    private static final class ReplicaAllReduce implements AutoCloseable {
        private final Communicator copies;
        private final ByteCounts bytes;
        private final Stream sums;
        private final Event reduced;
        private final Event summed;
        /** By group, the number of its last reduction in this step; 0: none. */
        private final long[] turns;

        private final Scope scope;
        private final GradientCasts casts;

        private final BitSet done = new BitSet();
        private long turn;

        /** {@code parts}: this rank's shards, by group. */
        ReplicaAllReduce(
                Stream compute, List<List<Tensor>> parts, DType reduceType, Communicator along, ByteCounts bytes) {
            this.bytes = bytes;
            try (Opened opened = new Opened()) {
                copies = opened.add(along.split(0, along.rank(), along.config().withName("copies")));
                sums = opened.add(compute.device().openStream());
                reduced = opened.add(compute.device().openEvent());
                summed = opened.add(compute.device().openEvent());
                turns = new long[parts.size()];
                scope = opened.add(compute.device().openScope(compute)).countedAs(MemoryUse.Holder.COLLECTIVES);
                long longest = parts.stream()
                        .flatMap(List::stream)
                        .mapToLong(Tensor::count)
                        .max()
                        .orElse(0);
                casts = GradientCasts.ofFloats(reduceType, longest, scope);
                opened.keep();
            }
        }

        /** Records that {@code group} was reduced within the copy. */
        void reduced(int group) {
            turns[group] = ++turn;
        }

        /** Returns whether {@code group} was summed over the copies in this step. */
        boolean isSummed(int group) {
            return done.get(group);
        }

        /** Sums the shards of {@code group}, after the work enqueued on {@code reductions}. */
        void sum(int group, List<Tensor> parts, Stream reductions) {
            reduced.record(reductions);
            sums.await(reduced);
            for (int i = 0; i < parts.size(); i++) {
                sum(parts.get(i));
            }
            done.set(group);
        }

        private void sum(Tensor part) {
            try (Scope views = scope.open()) {
                Tensor summing = casts.cast(part, views, sums);
                bytes.allReduce(summing);
                copies.allReduce(summing, summing, Reduction.SUM, sums);
                if (casts.changes()) {
                    casts.castBack(summing, part, Output.OVERWRITE, sums);
                }
            }
        }

        /** Sums the groups that were reduced and not summed yet; {@code parts} by group. */
        void finish(List<List<Tensor>> parts, Stream reductions) {
            for (int group = next(); group >= 0; group = next()) {
                sum(group, parts.get(group), reductions);
            }
        }

        private int next() {
            int first = -1;
            for (int group = 0; group < turns.length; group++) {
                boolean waits = turns[group] > 0 && !done.get(group);
                if (waits && (first < 0 || turns[group] < turns[first])) {
                    first = group;
                }
            }
            return first;
        }

        /** Lets later work of {@code compute} wait for the sums. */
        void await(Stream compute) {
            summed.record(sums);
            compute.await(summed);
        }

        void restart() {
            Arrays.fill(turns, 0);
            turn = 0;
            done.clear();
        }

        long byteSize() {
            return scope.reservedBytes();
        }

        /** Throws if an enqueued sum has failed. */
        void check() {
            copies.check();
        }

        @Override
        public void close() {
            sums.close();
            reduced.close();
            summed.close();
            scope.close();
            copies.close();
        }
    }
}
