package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.te.Output;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;

/**
 * All-reduces over copies of a model the gradient shards that each copy has reduced, once a step, on a separate stream and communicator.
 *
 * <p>Groups are summed in the order of their last reductions, which is the same on every rank.
 *
 * <p>Threading: the device's thread.
 */
final class ReplicaAllReduce implements AutoCloseable {
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
    ReplicaAllReduce(Stream compute, List<List<Tensor>> parts, DType reduceType, Communicator along, ByteCounts bytes) {
        this.bytes = bytes;
        Opened opened = new Opened();
        try {
            copies = opened.add(along.split(0, along.rank(), along.config().withName("copies")));
            sums = opened.add(compute.device().openStream());
            reduced = opened.add(compute.device().openEvent());
            summed = opened.add(compute.device().openEvent());
            turns = new long[parts.size()];
            scope = opened.add(compute.device().openScope(compute));
            long longest = parts.stream()
                    .flatMap(List::stream)
                    .mapToLong(Tensor::count)
                    .max()
                    .orElse(0);
            casts = GradientCasts.ofFloats(reduceType, longest, scope);
        } catch (RuntimeException | Error failure) {
            opened.closeAfter(failure);
            throw failure;
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
