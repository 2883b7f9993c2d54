package dev.chagres.sharding;

import dev.chagres.Scope;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.CtaPolicy;
import dev.chagres.nccl.Registration;
import org.jspecify.annotations.Nullable;

/**
 * The ranks that gather weights, and memory in windows of their communicator if {@link WeightGather} asks for it.
 *
 * <p>Threading: the device's thread.
 */
final class GatherRanks implements AutoCloseable {
    private final WeightGather gather;
    final Communicator communicator;
    private final RankWindows windows;
    /** The window of the parameters' weights; null before it is allocated, and without windows. */
    private @Nullable CollectiveMemory weights;
    /** How weights are really gathered: NCCL may have made no windows. */
    private WeightGather made = WeightGather.DEVICE;

    private GatherRanks(WeightGather gather, Communicator communicator) {
        this.gather = gather;
        this.communicator = communicator;
        windows = new RankWindows(communicator, "weights");
    }

    /** Called by each rank of a copy. */
    static GatherRanks of(ShardedRanks ranks, WeightGather gather) {
        Communicator copy = ranks.copy();
        CommunicatorConfig config = copy.config().withName("weights");
        GatherRanks made = new GatherRanks(
                gather,
                copy.split(
                        0,
                        copy.rank(),
                        gather == WeightGather.COPY_ENGINE ? config.withCtaPolicy(CtaPolicy.ZERO) : config));
        try {
            if (gather == WeightGather.COPY_ENGINE) {
                made.windows.prepareCopyEngines();
            }
            return made;
        } catch (RuntimeException | Error failure) {
            made.close();
            throw failure;
        }
    }

    /** Returns the gathering ranks of a new communicator, with the memory of {@code former}. */
    static GatherRanks of(ShardedRanks ranks, GatherRanks former) {
        GatherRanks made = of(ranks, former.gather);
        CollectiveMemory kept = former.weights;
        if (kept == null) {
            return made;
        }
        try {
            made.windows.takeOver(kept);
            made.keep(kept);
            return made;
        } catch (RuntimeException | Error failure) {
            made.close();
            throw failure;
        }
    }

    boolean usesWindows() {
        return gather != WeightGather.DEVICE;
    }

    /** Returns the windows of gathers; null if they use device memory. */
    @Nullable
    RankWindows windows() {
        return usesWindows() ? windows : null;
    }

    /** Returns a window for further tensors that gathers use; null if they use device memory, or for no bytes. */
    @Nullable
    CollectiveMemory take(long byteSize) {
        return usesWindows() ? windows.take(byteSize) : null;
    }

    /** Returns a window for the parameters' weights. */
    Scope takeForWeights(long byteSize) {
        CollectiveMemory taken = take(byteSize);
        if (taken == null) {
            throw new IllegalStateException("weights: expected memory in windows, got " + byteSize
                    + " bytes to be gathered in " + gather + " memory");
        }
        keep(taken);
        return taken.scope();
    }

    private void keep(CollectiveMemory ofWeights) {
        weights = ofWeights;
        made = ofWeights.kind() == Registration.Kind.WINDOW ? gather : WeightGather.DEVICE;
    }

    /** Returns in which memory weights are really gathered. */
    WeightGather made() {
        return made;
    }

    /** Describes where weights are gathered; empty for device memory. */
    String explain() {
        return switch (made) {
            case COPY_ENGINE -> ", weights gathered in registered windows by copy engines";
            case DEVICE ->
                usesWindows() ? ", weights gathered without windows, for NCCL made none: " + NoWindows.reason() : "";
        };
    }

    /** Deregisters the remaining memory, which then belongs to no communicator. */
    @Override
    public void close() {
        try {
            windows.close();
        } finally {
            communicator.close();
        }
    }

    /** Why NCCL makes ordinary registered buffers where windows are asked for. */
    static final class NoWindows {
        private static final String VARIABLE = "NCCL_WIN_ENABLE";

        private NoWindows() {}

        /** Returns the reason, as in "NCCL made none: ranks cannot reach each other's memory". */
        static String reason() {
            return reason(System.getenv(VARIABLE));
        }

        /** {@code enabled}: the variable's value. */
        static String reason(@Nullable String enabled) {
            return "0".equals(enabled) ? VARIABLE + "=0 is set" : "ranks cannot reach each other's memory";
        }
    }
}
