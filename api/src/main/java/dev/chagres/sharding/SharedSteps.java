package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import java.util.Collections;
import org.jspecify.annotations.Nullable;

/**
 * The steps of ranks of which each updates a part of a model: when some fail, all that are left have completed the same ones, for nobody
 * has what another one would have to be given.
 *
 * <p>Before its update each rank waits until all have come so far. One that learns meanwhile that another has failed asks whether a rank
 * has made its update: then it makes its own.
 *
 * <p>Threading: the device's thread.
 */
final class SharedSteps implements AutoCloseable {
    private final Communicator world;
    private final Stream stream;
    private final Scope scope;
    private final Tensor word;
    private long completed;
    /** Whether this step's update may be made, the step's before, and whether one was made without that. */
    private boolean awaited;

    private boolean wasAwaited;
    private boolean unawaited;
    /** Who is left, where that is known already. */
    private @Nullable Agreement agreed;

    SharedSteps(Communicator world, Stream stream, long completed) {
        this.world = world;
        this.stream = stream;
        this.completed = completed;
        scope = stream.device().openScope(stream);
        word = scope.tensor(DType.INT32, 1);
        word.zero(stream);
    }

    long completed() {
        return completed;
    }

    /** Waits until all ranks have come to their update; {@code check} throws what has failed in this rank's collectives. */
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
            // Another rank has made its update, so all have come that far: the next collective tells of the failure.
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
}
