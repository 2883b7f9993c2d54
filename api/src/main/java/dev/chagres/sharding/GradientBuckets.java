package dev.chagres.sharding;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/**
 * All-reduces gradients bucket by bucket, on a separate stream and communicator. A bucket has neighbouring groups; it is enqueued when they
 * are complete and all later buckets are enqueued, so that every rank has the same order.
 *
 * <p>Threading: the device's thread.
 */
final class GradientBuckets implements AutoCloseable {
    /** Groups from {@code first} to before {@code end}. */
    private record Bucket(int first, int end, Tensor gradients) {}

    private final Parameters parameters;
    private final Communicator communicator;
    private final Stream compute;
    private final Stream sums;
    private final Event written;
    private final Event summed;
    /** In the order in which they are summed: the last groups first. */
    private final List<Bucket> buckets;

    private final ByteCounts bytes;
    private final Scope scope;
    private final GradientCasts casts;

    private final BitSet complete = new BitSet();
    private int next;
    private int overlapped;
    /** Whether the parameters' stream already waits for this step's sums. */
    private boolean awaited;

    private boolean closed;

    /** Each rank makes one. */
    GradientBuckets(Parameters parameters, Communicator world, DataParallelConfig config, ByteCounts bytes) {
        this.bytes = bytes;
        this.parameters = parameters;
        compute = parameters.scope().stream();
        Device device = compute.device();
        try (Opened opened = new Opened()) {
            communicator =
                    opened.add(world.split(0, world.rank(), world.config().withName("gradients")));
            sums = opened.add(device.openStream());
            written = opened.add(device.openEvent());
            summed = opened.add(device.openEvent());
            buckets = buckets(parameters, config.bucketBytes());
            scope = opened.add(device.openScope(compute)).countedAs(MemoryUse.Holder.COLLECTIVES);
            long longest = buckets.stream()
                    .mapToLong(bucket -> bucket.gradients.count())
                    .max()
                    .orElse(0);
            casts = GradientCasts.ofFloats(config.reduceType(), longest, scope);
            opened.keep();
        }
    }

    private static List<Bucket> buckets(Parameters parameters, long bucketBytes) {
        List<FlatGroup> groups = parameters.access().groups();
        List<Bucket> all = new ArrayList<>();
        int end = groups.size();
        long count = 0;
        for (int first = end - 1; first >= 0; first--) {
            count += groups.get(first).gradientCount();
            if (count > 0 && (first == 0 || count * Float.BYTES >= bucketBytes)) {
                long offset = groups.get(first).gradientOffset();
                all.add(new Bucket(first, end, parameters.scope().view(parameters.gradients(), offset, count)));
                end = first;
                count = 0;
            }
        }
        return List.copyOf(all);
    }

    /** Records that no later backward call of this step writes gradients of {@code group}. */
    void complete(int group) {
        complete.set(group);
        while (next < buckets.size() && isComplete(buckets.get(next))) {
            sum(buckets.get(next++));
            overlapped = next;
        }
    }

    private boolean isComplete(Bucket bucket) {
        for (int group = bucket.first; group < bucket.end; group++) {
            if (!complete.get(group) && parameters.access().groups().get(group).gradientCount() > 0) {
                return false;
            }
        }
        return true;
    }

    /** Returns whether the sum of the gradients of {@code group} was enqueued in this step. */
    boolean isSummed(int group) {
        return next > 0 && group >= buckets.get(next - 1).first;
    }

    private void sum(Bucket bucket) {
        for (int group = bucket.first; group < bucket.end; group++) {
            parameters.access().completeGradients(group);
        }
        Stream stream = compute;
        if (Inside.capture(compute) == null) {
            written.record(compute);
            sums.await(written);
            stream = sums;
        }
        try (Scope views = scope.open()) {
            Tensor summing = casts.cast(bucket.gradients, views, stream);
            bytes.allReduce(summing);
            communicator.allReduce(summing, summing, Reduction.SUM, stream);
            if (casts.changes()) {
                casts.castBack(summing, bucket.gradients, Output.OVERWRITE, stream);
            }
        }
    }

    /** Enqueues the remaining buckets, and makes later work of the parameters' stream wait for all sums. */
    void finish() {
        while (next < buckets.size()) {
            sum(buckets.get(next++));
        }
        await();
    }

    private void await() {
        if (Inside.capture(compute) == null) {
            summed.record(sums);
            compute.await(summed);
        }
        awaited = true;
    }

    /** Waits until all sums are done, on the host. */
    void synchronize() {
        communicator.synchronize(compute);
    }

    /**
     * Enqueues zeroing of all gradients, padding included, after sums that have failed: an aborted sum goes on with what lies in NCCL's buffers,
     * and no backward call overwrites padding, which later norms and sums read. After {@link #close} it does nothing.
     */
    void discard() {
        if (closed) {
            return;
        }
        parameters.gradients().zero(sums);
        summed.record(sums);
        compute.await(summed);
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        if (next > 0 && !awaited) {
            await(); // The next backward overwrites gradients that a sum may still read.
        }
        awaited = false;
        next = 0;
        overlapped = 0;
        complete.clear();
    }

    /** Returns how many buckets were enqueued in this step before {@link #finish}. */
    int overlapped() {
        return overlapped;
    }

    int count() {
        return buckets.size();
    }

    /** Returns a line for each bucket. */
    String explain() {
        StringBuilder text = new StringBuilder();
        for (Bucket bucket : buckets) {
            List<FlatGroup> groups = parameters.access().groups().subList(bucket.first, bucket.end);
            String first = groups.getFirst().name();
            String last = groups.getLast().name();
            text.append("\n  ")
                    .append(first.isEmpty() ? "(no group)" : first)
                    .append(groups.size() == 1 ? "" : " to " + last)
                    .append(": ")
                    .append(bucket.gradients.byteSize())
                    .append(" bytes");
        }
        return text.toString();
    }

    @Override
    public void close() {
        closed = true;
        written.close();
        summed.close();
        sums.close();
        scope.close();
        communicator.close();
    }
}
