package dev.chagres.pass;

import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.internal.Inside;

/**
 * The memory of one pass: its own, which lasts until the pass is begun again, and the stream's scratch memory, which is freed when a
 * layer's call returns.
 *
 * <p>Threading: the device's thread.
 */
final class PassMemory {
    private final Stream stream;
    final Scope own;
    /** The pass's own or, while a layer is recomputed, the stream's memory for recomputation. */
    private Scope kept;

    private Scope scratch;
    /** Nesting depth of layers' calls. */
    private int depth;

    PassMemory(Stream stream) {
        this.stream = stream;
        own = stream.device().openScope(stream).countedAs(MemoryUse.Holder.ACTIVATIONS);
        kept = own;
        scratch = Inside.scratch(stream);
    }

    /** Returns the scope for tensors that backward needs; inside a call while nothing is saved, scratch memory. */
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
        if (depth == 0) {
            throw new IllegalStateException("leave: expected a call after enter, got one without it");
        }
        depth--;
        scratch.close();
        scratch = before;
    }

    /** Frees everything that was allocated. */
    void restart() {
        own.restart();
        // Nothing is in use between calls: several chunks are merged into one.
        Inside.scratch(stream).restart();
        Inside.recomputed(stream).restart();
    }
}
