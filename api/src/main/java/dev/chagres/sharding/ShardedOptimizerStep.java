package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import dev.chagres.parallel.NormOverRanks;
import dev.chagres.parallel.NormReduction;
import java.util.Collections;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * The optimizer's steps of ranks with sharded state. When some fail, all remaining ranks must have completed the same steps, since no rank
 * has another one's shard.
 *
 * <p>Before its update each rank waits until all have reached it. A rank that learns of a failure meanwhile asks whether any rank has made
 * its update, and if so makes its own.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedOptimizerStep implements AutoCloseable {
    private final Communicator world;
    private final Stream stream;
    private final Scope scope;
    private final Tensor word;
    private long completed;
    /** Whether this step's update may be made, whether the previous one's might, and whether one was made without permission. */
    private boolean awaited;

    private boolean wasAwaited;
    private boolean unawaited;
    /** The remaining ranks, if known already. */
    private @Nullable Agreement agreed;

    ShardedOptimizerStep(Communicator world, Stream stream, long completed) {
        this.world = world;
        this.stream = stream;
        this.completed = completed;
        scope = stream.device().openScope(stream).countedAs(MemoryUse.Holder.COLLECTIVES);
        word = scope.tensor(DType.INT32, 1);
        word.zero(stream);
    }

    long completed() {
        return completed;
    }

    /** Waits until all ranks have reached their update; {@code check} throws if one of this rank's collectives has failed. */
    void await(Runnable check) {
        world.synchronize(stream);
        check.run();
        try {
            world.allReduce(word, word, Reduction.MAX, stream);
            world.synchronize(stream);
        } catch (RankFailedException failed) {
            Agreement made = Agreement.of(world, completed);
            agreed = made;
            if (Collections.max(made.values()) == completed) {
                throw failed;
            }
            // Another rank has made its update, so all have reached it: the next collective reports the failure.
        }
        awaited = true;
        unawaited = false;
    }

    /** Refuses a collective between {@link #await} and the update, in which one rank may fail and another may not. */
    void ensureNotAwaited() {
        if (awaited) {
            throw new IllegalStateException(
                    "norm: expected before awaitGradients(), got it after; call awaitGradients() last before the optimizer's"
                            + " step");
        }
    }

    void ensureAllAwaited() {
        if (unawaited) {
            throw new IllegalStateException("shrink: expected awaitGradients() before each step of the optimizer, got a"
                    + " step without it, which other ranks may not have made; start again from a saved state");
        }
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        wasAwaited = awaited;
        awaited = false;
    }

    /** The step that {@link #restart} has ended was an update. */
    void stepped() {
        completed++;
        unawaited |= !wasAwaited;
    }

    /** Returns who is left. */
    Agreement agree() {
        Agreement known = agreed;
        agreed = null;
        return known == null ? Agreement.of(world, completed) : known;
    }

    @Override
    public void close() {
        scope.close();
    }

    /** The norm over ranks with sharded gradients. It is computed before the ranks wait for each other's update. */
    record ShardedNorm(NormOverRanks norm, ShardedOptimizerStep steps, UnaryOperator<RankFailedException> explained)
            implements NormReduction, AutoCloseable {
        @Override
        public void normOverRanks(Tensor value, Tensor skip) {
            steps.ensureNotAwaited();
            try {
                norm.normOverRanks(value, skip);
            } catch (RankFailedException failed) {
                throw explained.apply(failed);
            }
        }

        @Override
        public void close() {
            norm.close();
        }
    }
}
