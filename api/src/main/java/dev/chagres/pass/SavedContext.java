package dev.chagres.pass;

import org.jspecify.annotations.Nullable;

/**
 * The tensors that one forward call keeps for its backward call. Each kind of layer has a class that extends this one and has {@link SavedTensor}
 * fields; a {@link ContextPool} makes the objects, and the pass holds them in order.
 *
 * <p>Threading: the device's thread.
 */
public abstract class SavedContext {
    /** The pool to which the object is returned. */
    @Nullable
    ContextPool<?> pool;

    /** In the pass, the object that was pushed before this one; in the pool, the next free object. */
    @Nullable
    SavedContext below;

    /** The number of changes on the device before forward ran. */
    long changes;

    /** For subclasses, whose objects a pool makes. */
    protected SavedContext() {}
}
