package dev.chagres.pass;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.pass.PassObserver.Direction;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: the calls of layers and embeddings in one pass, which may use parameters, and their observer.
 *
 * <p>Threading: the device's thread.
 */
public final class PassHooks {
    private final Pass pass;
    private @Nullable LayerHooks observer;
    private @Nullable Object lender;

    PassHooks(Pass pass) {
        this.pass = pass;
    }

    /**
     * Notifies {@code newObserver} of every call from now on.
     *
     * @throws IllegalStateException when there is another observer, or inside a layer's call
     */
    public void observe(LayerHooks newObserver) {
        pass.memory().ensureOutsideCalls("observe");
        if (observer != null && observer != newObserver) {
            throw new IllegalStateException(
                    "the pass belongs to " + observer + " already; make another with Pass.training");
        }
        observer = Checks.given("newObserver", newObserver);
    }

    /** Stops notifying {@code present}. */
    public void forget(LayerHooks present) {
        if (observer == present) {
            observer = null;
        }
    }

    /** Returns how many forward calls, and calls inside them, have saved tensors that no backward call has used yet. */
    public int savedCount() {
        return pass.saved().count();
    }

    /**
     * Returns whether gradients of the micro-batch are incomplete, because a backward call has failed, or was refused and not repeated: the
     * next {@link Pass#begin()} discards the gradients of the step.
     */
    public boolean isIncomplete() {
        return pass.gradients().isIncomplete();
    }

    /** Returns how many draws of random numbers the micro-batch has made. */
    public long draws() {
        return pass.draws().site();
    }

    /**
     * Sets the number of draws to {@code count}: the draws of layers that other ranks of a pipeline have computed for this micro-batch.
     *
     * @throws IllegalArgumentException when the count is negative
     */
    public void skipDraws(long count) {
        Numbers.atLeastZero("count", count);
        pass.draws().restoreSite(count);
    }

    /**
     * Refuses {@link Pass#begin()}, {@link Pass#end()}, {@link Pass#close()} and {@link Pass#abandon()} from now on, while a stage of a
     * pipeline computes: they would give back the memory of what it was handed, or discard gradients of other micro-batches.
     *
     * @param pipeline named in the error; null to permit them again
     */
    public void lend(@Nullable Object pipeline) {
        lender = pipeline;
    }

    void ensureNotLent(String call) {
        if (lender != null) {
            throw new IllegalStateException(
                    call + ": expected a call outside of a PipelineStage, got one by a stage of the " + lender
                            + ", which begins and ends its passes itself; leave the call out");
        }
    }

    /** For authors of objects with parameters that are no layers: their call begins. */
    public void begin(Direction direction) {
        LayerHooks present = observer;
        if (present != null) {
            present.begins(direction, pass);
        }
    }

    /** The innermost call, a backward call, has enqueued all gradients of parameters that it and calls inside it write. */
    public void gradientsWritten() {
        LayerHooks present = observer;
        if (present != null) {
            present.gradientsWritten(pass);
        }
    }

    /** A call that has begun has enqueued all its work. */
    public void end(Direction direction) {
        LayerHooks present = observer;
        if (present != null) {
            present.ends(direction, pass);
        }
    }

    /** A call that has begun has thrown an exception. */
    public void fail() {
        LayerHooks present = observer;
        if (present != null) {
            present.fails();
        }
    }
}
