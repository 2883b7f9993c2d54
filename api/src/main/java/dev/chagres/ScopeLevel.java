package dev.chagres;

import dev.chagres.internal.memory.DeviceMemory;
import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.Turns;
import org.jspecify.annotations.Nullable;

/**
 * A place in a stack of nested scopes: one scope at a time has it. It keeps what the next one uses again, so that opening makes no garbage:
 * the tensor objects and the scope objects.
 *
 * <p>Threading: the device's thread.
 */
final class ScopeLevel {
    /** Programs nest few scopes; more than this many come from a loop that closes none. */
    static final int MAX_DEPTH = 1000;

    final Stream stream;
    final DeviceMemory memory;
    /** Whether the stack belongs to a stream and holds memory of single calls, which no collective uses after the call. */
    final boolean ofStream;

    final ScopeState state;
    final IssuedTensors issued;
    private final int depth;
    private final @Nullable ScopeLevel below;
    private @Nullable ScopeLevel above;
    /** The one that has its turn has this level, or had it last. */
    private final Turns<Scope> scopes;

    private long bottomSmall;
    private long bottomLarge;
    private boolean covered;

    private ScopeLevel(Stream stream, DeviceMemory memory, boolean ofStream, @Nullable ScopeLevel below) {
        this.stream = stream;
        this.memory = memory;
        this.ofStream = ofStream;
        this.below = below;
        depth = below == null ? 0 : below.depth + 1;
        String bottom = "scope of " + stream.device();
        state = new ScopeState(stream.device().state(), depth == 0 ? bottom : "nested " + bottom);
        issued = new IssuedTensors(state);
        scopes = new Turns<>(() -> new Scope(this));
    }

    /** Returns the lowest scope of a stack, which is open. */
    static Scope bottom(Stream stream, DeviceMemory memory, boolean ofStream) {
        return new ScopeLevel(stream, memory, ofStream, null).scopes.present();
    }

    boolean isBottom() {
        return below == null;
    }

    /** Returns whether {@code scope} has this level, and is open. */
    boolean isHeldBy(Scope scope) {
        return scopes.present() == scope && state.isLive();
    }

    /** Returns whether a scope lies on top of the one that has this level. */
    boolean isCovered() {
        return covered;
    }

    boolean holdsMemory() {
        return memory.markSmall() != bottomSmall || memory.markLarge() != bottomLarge;
    }

    /** Opens a scope on top. */
    Scope open() {
        if (depth == MAX_DEPTH) {
            throw new IllegalStateException(state + " is nested in " + MAX_DEPTH
                    + " open scopes, the most there may be; close each in the method that opened it");
        }
        ScopeLevel top = above;
        if (top == null) {
            top = new ScopeLevel(stream, memory, ofStream, this);
            above = top;
        }
        top.bottomSmall = memory.markSmall();
        top.bottomLarge = memory.markLarge();
        top.renew();
        covered = true;
        return top.scopes.next();
    }

    private void renew() {
        issued.restart();
        state.renew();
    }

    /** Takes back the memory of the scope that has this level. */
    void restart() {
        // First, so that the old tensors are closed even if the device has no memory left.
        renew();
        memory.rewind(bottomSmall, bottomLarge);
        if (below == null) {
            memory.unite();
        }
    }

    /** Closes the scopes on top. */
    void uncover() {
        ScopeLevel top = this;
        while (top.covered && top.above != null) {
            top = top.above;
        }
        // A loop, since recursion to this depth could overflow a small stack.
        while (top != this) {
            top = top.giveBack();
        }
    }

    /** Ends the scope that has this level, which is nested, and returns the level below. */
    ScopeLevel giveBack() {
        if (below == null) {
            throw new IllegalStateException(state + " is not nested");
        }
        state.end();
        memory.rewind(bottomSmall, bottomLarge);
        below.covered = false;
        return below;
    }

    void destroyHandles() {
        for (ScopeLevel level = this; level != null; level = level.above) {
            level.issued.destroyHandles();
        }
    }
}
