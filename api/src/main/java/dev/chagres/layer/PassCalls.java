package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.layer.PassObserver.Direction;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: the calls of one pass that may use parameters, of layers and of embeddings, and who is told of them.
 *
 * <p>Threading: the device's thread.
 */
public final class PassCalls {
    private final Pass pass;
    private @Nullable CallObserver observer;

    PassCalls(Pass pass) {
        this.pass = pass;
    }

    /**
     * Tells {@code newObserver} of every call from now on.
     *
     * @throws IllegalStateException when another one is told, or inside a layer's call
     */
    public void observe(CallObserver newObserver) {
        pass.memory().ensureOutsideCalls("observe");
        if (observer != null && observer != newObserver) {
            throw new IllegalStateException(
                    "the pass belongs to " + observer + " already; make another with Pass.training");
        }
        observer = Checks.given("newObserver", newObserver);
    }

    /** Tells {@code present} no more. */
    public void forget(CallObserver present) {
        if (observer == present) {
            observer = null;
        }
    }

    /** Returns how many forward calls, and calls inside them, have saved what no backward call has taken. */
    public int savedCount() {
        return pass.saved().count();
    }

    /** Returns how many draws of random numbers the micro-batch has made. */
    public long draws() {
        return pass.draws().site();
    }

    /**
     * Goes on as after {@code count} draws: those of the layers that other ranks of a pipeline have computed of this micro-batch.
     *
     * @throws IllegalArgumentException when the count is negative
     */
    public void skipDraws(long count) {
        if (count < 0) {
            throw new IllegalArgumentException("count: expected at least 0, got " + count);
        }
        pass.draws().restoreSite(count);
    }

    void begin(Direction direction) {
        CallObserver present = observer;
        if (present != null) {
            present.begins(direction, pass);
        }
    }

    void end(Direction direction) {
        CallObserver present = observer;
        if (present != null) {
            present.ends(direction, pass);
        }
    }

    void fail() {
        CallObserver present = observer;
        if (present != null) {
            present.fails();
        }
    }
}
