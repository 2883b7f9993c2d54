package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.CtaPolicy;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.Registration;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.RowSum;
import dev.chagres.te.Output;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Sums whole gradients so that this rank gets its shard: over the ranks of its copy of the model and, if copies shard the optimizer's state, over the copies.
 *
 * <p>Threading: the device's thread.
 */
final class GradientReduceScatter implements AutoCloseable {
    private final Communicator copy;
    /** Null if each copy has the whole optimizer's state. */
    private final @Nullable Communicator copies;

    private final Stream stream;
    private final ByteCounts bytes;
    private final long longest;
    private final Scope scope;
    /** The sum over the copy, before it is reduce-scattered over copies; null without that. */
    private final @Nullable Tensor copySum;

    /** Null if NCCL's kernels reduce. */
    private final @Nullable CopyEngineReduceScatter exchange;
    /** What {@link #exchange} sums before it is cast to {@link #copySum}; null without that. */
    private final @Nullable Tensor exchanged;

    private final GradientCasts casts;
    /** A buffer for sums that are cast or added afterwards; made when needed. */
    private @Nullable Tensor addend;

    /** {@code parts}: this rank's FP32 shards of {@code content}, by group. */
    GradientReduceScatter(
            ShardedRanks ranks,
            FullyShardedConfig config,
            UnshardedGradients content,
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
        try (Opened opened = new Opened()) {
            scope = opened.add(compute.device().openScope(compute)).countedAs(MemoryUse.Holder.COLLECTIVES);
            DType dtype = config.reduceType();
            boolean copyEngines = config.gradientReduction() == GradientReduction.COPY_ENGINE;
            copy = opened.add(split(ranks.copy(), "gradients", copyEngines ? CtaPolicy.ZERO : null));
            Communicator others = ranks.splitsOptimizer() ? ranks.copies() : null;
            copies = others == null ? null : opened.add(split(others, "copies", null));
            long ofCopy = others == null ? longest : longest * others.ranks();
            copySum = others == null || longest == 0 ? null : scope.tensor(dtype, ofCopy);
            long cast = content.longestUnlike(dtype);
            exchange = copyEngines
                    ? opened.add(new CopyEngineReduceScatter(copy, dtype, ofCopy * copy.ranks(), cast))
                    : null;
            exchanged = exchange == null || copySum == null || dtype == DType.FLOAT32
                    ? null
                    : scope.tensor(DType.FLOAT32, ofCopy);
            casts = new GradientCasts(dtype, cast, exchange == null ? scope : exchange.scope(scope));
            opened.keep();
        }
    }

    private static Communicator split(Communicator of, String name, @Nullable CtaPolicy policy) {
        CommunicatorConfig config = of.config().withName(name);
        return of.split(0, of.rank(), policy == null ? config : config.withCtaPolicy(policy));
    }

    /** Returns the windows that gradients must lie in so that copy engines reach them; null if NCCL's kernels reduce. */
    @Nullable
    RankWindows windows() {
        return exchange == null ? null : exchange.windows;
    }

    /** Returns how gradients are really reduced. */
    GradientReduction made() {
        return exchange == null ? GradientReduction.REDUCE_SCATTER : exchange.made;
    }

    /** Enqueues {@code part = part r of the sum of whole}, or adds that to it; {@code whole} is FP32 or has the type of sums. */
    void sum(Tensor whole, Tensor part, Output output) {
        try (Scope views = Inside.scratch(stream).open()) {
            Tensor addends = casts.cast(whole, views, stream);
            CopyEngineReduceScatter engines = reaching(addends);
            if (engines != null && copies == null) {
                bytes.reduceScatter(addends);
                engines.sum(addends, part, output, views, stream);
                return;
            }
            boolean apart = output == Output.ADD || casts.changes();
            Tensor sum = apart ? views.view(addend(), 0, part.count()) : part;
            scatter(addends, sum, views);
            if (apart) {
                casts.castBack(sum, part, output, stream);
            }
        }
    }

    private @Nullable CopyEngineReduceScatter reaching(Tensor addends) {
        return exchange != null && exchange.reaches(addends) ? exchange : null;
    }

    private void scatter(Tensor whole, Tensor part, Scope views) {
        Communicator others = copies;
        if (others == null || copySum == null) {
            scatterOverCopy(whole, part, views);
            return;
        }
        Tensor sum = views.view(copySum, 0, part.count() * others.ranks());
        scatterOverCopy(whole, sum, views);
        bytes.reduceScatter(sum);
        others.reduceScatter(sum, part, Reduction.SUM, stream);
    }

    private void scatterOverCopy(Tensor whole, Tensor part, Scope views) {
        bytes.reduceScatter(whole);
        CopyEngineReduceScatter engines = reaching(whole);
        if (engines == null) {
            copy.reduceScatter(whole, part, Reduction.SUM, stream);
            return;
        }
        Tensor sum = exchanged == null ? part : views.view(exchanged, 0, part.count());
        engines.sum(whole, sum, Output.OVERWRITE, views, stream);
        if (sum != part) {
            Elementwise.cast(sum, part, stream);
        }
    }

    private Tensor addend() {
        Tensor present = addend;
        if (present == null) {
            present = scope.tensor(casts.dtype, longest);
            addend = present;
        }
        return present;
    }

    long byteSize() {
        return scope.reservedBytes() + (exchange == null ? 0 : exchange.byteSize());
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
        if (exchange != null) {
            exchange.close();
        }
        if (copies != null) {
            copies.close();
        }
        copy.close();
    }

    /**
     * Reduces and scatters gradients by copy engines: they bring each rank its part of all ranks' gradients, and a kernel adds these up.
     */
    private static final class CopyEngineReduceScatter implements AutoCloseable {
        private final Communicator communicator;
        /** The windows that also gradients must lie in. */
        final RankWindows windows;
        /** Null where nothing is trained. */
        private final @Nullable CollectiveMemory memory;
        /** This rank's part of each rank's gradients. */
        private final @Nullable Tensor parts;
        /** How gradients are really reduced: NCCL may have made no windows. */
        final GradientReduction made;

        /**
         * {@code longest}: elements of the longest vector of a group; {@code longestCast}: those of the longest one that is cast to {@code dtype},
         * for which {@link #scope} then has room.
         */
        CopyEngineReduceScatter(Communicator communicator, DType dtype, long longest, long longestCast) {
            this.communicator = communicator;
            try (Opened opened = new Opened()) {
                windows = opened.add(new RankWindows(communicator, "gradients"));
                windows.prepareCopyEngines();
                long byteSize = longest == 0
                        ? 0
                        : CollectiveMemory.byteSizeOf(dtype, longest)
                                + (longestCast == 0 ? 0 : CollectiveMemory.byteSizeOf(dtype, longestCast));
                memory = windows.take(byteSize);
                parts = memory == null ? null : memory.scope().tensor(dtype, longest);
                opened.keep();
            }
            made = memory == null || memory.kind() == Registration.Kind.WINDOW
                    ? GradientReduction.COPY_ENGINE
                    : GradientReduction.REDUCE_SCATTER;
        }

        /** Returns the scope that hands out memory for casts; {@code other} where nothing is trained. */
        Scope scope(Scope other) {
            return memory == null ? other : memory.scope();
        }

        /** Returns whether copy engines can read these gradients. */
        boolean reaches(Tensor whole) {
            return made == GradientReduction.COPY_ENGINE && windows.contains(whole);
        }

        /** Enqueues {@code part = part r of the sum of whole}, or adds that to it; {@code part} is FP32. */
        void sum(Tensor whole, Tensor part, Output output, Scope views, Stream stream) {
            Tensor all = Checks.given("parts", parts);
            communicator.allToAll(whole, views.view(all, 0, whole.count()), stream);
            RowSum.rowSum(views.view(all, 0, communicator.ranks(), part.count()), part, output, stream);
        }

        long byteSize() {
            return memory == null ? 0 : memory.byteSize();
        }

        @Override
        public void close() {
            if (memory != null) {
                memory.close();
            }
            windows.close();
        }
    }
}
