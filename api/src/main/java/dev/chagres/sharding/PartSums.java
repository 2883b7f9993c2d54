package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.te.Output;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Sums whole gradients so that this rank gets its shard: over the ranks of its copy of the model and, if copies shard the optimizer's state, over the copies.
 *
 * <p>Threading: the device's thread.
 */
final class PartSums implements AutoCloseable {
    private final Communicator copy;
    /** Null if each copy has the whole optimizer's state. */
    private final @Nullable Communicator copies;

    private final Stream stream;
    private final ByteCounts bytes;
    private final long longest;
    private final Scope scope;
    /** The sum over the copy, before it is reduce-scattered over copies; null without that. */
    private final @Nullable Tensor copySum;

    private final GradientCasts casts;
    /** A buffer for sums that are cast or added afterwards; made when needed. */
    private @Nullable Tensor addend;

    /** {@code parts}: this rank's FP32 shards of {@code content}, by group. */
    PartSums(
            ShardedRanks ranks,
            DType reduceType,
            WholeGradients content,
            List<List<Tensor>> parts,
            Stream compute,
            Stream stream,
            ByteCounts bytes) {
        this.stream = stream;
        this.bytes = bytes;
        longest = parts.stream()
                .flatMap(List::stream)
                .mapToLong(Tensor::count)
                .max()
                .orElse(0);
        scope = compute.device().openScope(compute);
        copy = split(ranks.copy(), "gradients");
        Communicator others = ranks.splitsOptimizer() ? ranks.copies() : null;
        copies = others == null ? null : split(others, "copies");
        copySum = others == null || longest == 0 ? null : scope.tensor(reduceType, longest * others.ranks());
        casts = new GradientCasts(reduceType, content.longestUnlike(reduceType), scope);
    }

    private static Communicator split(Communicator of, String name) {
        return of.split(0, of.rank(), of.config().withName(name));
    }

    /** Enqueues {@code part = part r of the sum of whole}, or adds that to it; {@code whole} is FP32 or has the type of sums. */
    void sum(Tensor whole, Tensor part, Output output) {
        boolean apart = output == Output.ADD || casts.changes();
        Tensor room = apart ? addend() : part;
        try (Scope views = scope.open()) {
            Tensor sum = apart ? views.view(room, 0, part.count()) : part;
            scatter(casts.cast(whole, views, stream), sum, views);
            if (apart) {
                casts.castBack(sum, part, output, stream);
            }
        }
    }

    private void scatter(Tensor whole, Tensor part, Scope views) {
        bytes.reduceScatter(whole);
        Communicator others = copies;
        if (others == null || copySum == null) {
            copy.reduceScatter(whole, part, Reduction.SUM, stream);
            return;
        }
        Tensor sum = views.view(copySum, 0, part.count() * others.ranks());
        copy.reduceScatter(whole, sum, Reduction.SUM, stream);
        bytes.reduceScatter(sum);
        others.reduceScatter(sum, part, Reduction.SUM, stream);
    }

    private Tensor addend() {
        Tensor present = addend;
        if (present == null) {
            present = scope.tensor(casts.dtype(), longest);
            addend = present;
        }
        return present;
    }

    long byteSize() {
        return scope.reservedBytes();
    }

    /** Throws if an enqueued sum has failed. */
    void check() {
        copy.check();
        if (copies != null) {
            copies.check();
        }
    }

    @Override
    public void close() {
        scope.close();
        if (copies != null) {
            copies.close();
        }
        copy.close();
    }
}
