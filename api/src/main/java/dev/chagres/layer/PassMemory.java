package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.internal.Inside;

/**
 * The memory of one pass: its own, which lasts until the pass is begun again, and the stream's scratch memory, which goes back when a
 * layer's call returns.
 *
 * <p>Threading: the device's thread.
 */
final class PassMemory {
    private final Stream stream;
    private final Scope own;
    /** The pass's own, or, while a layer is recomputed, the stream's for that. */
    private Scope kept;

    private Scope scratch;
    /** Layers' calls that are under way, one inside the other. */
    private int depth;

    PassMemory(Stream stream) {
        this.stream = stream;
        own = stream.device().openScope(stream);
        kept = own;
        scratch = Inside.scratch(stream);
    }

    Scope own() {
        return own;
    }

    /** Returns where layers keep what backward needs; while nothing is saved, inside a call, scratch memory. */
    Scope kept(boolean saving) {
        return saving || depth == 0 ? kept : scratch;
    }

    Scope keptScope() {
        return kept;
    }

    void keepIn(Scope scope) {
        kept = scope;
    }

    Scope temporary() {
        return depth == 0 ? own : scratch;
    }

    void ensureOutsideCalls(String call) {
        if (depth != 0) {
            throw new IllegalStateException(call + " was called inside a layer's call; end that first");
        }
    }

    /** Opens the scratch memory of a layer's call and returns that of the caller, for {@link #leave}. */
    Scope enter() {
        Scope before = scratch;
        scratch = before.open();
        depth++;
        return before;
    }

    void leave(Scope before) {
        depth--;
        scratch.close();
        scratch = before;
    }

    /** Takes everything back that was handed out. */
    void restart() {
        own.restart();
        // Nothing lies there between calls: what they took in several chunks becomes one.
        Inside.scratch(stream).restart();
        Inside.recomputed(stream).restart();
    }
}
