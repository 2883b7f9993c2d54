package dev.chagres.layer;

import org.jspecify.annotations.Nullable;

/**
 * What one forward call keeps for its backward call. A layer has a small class of its own that extends this one and holds
 * {@link Kept} tensors; a {@link SavedPool} makes the objects and the pass holds them in order.
 *
 * <p>Threading: the device's thread.
 */
public abstract class Saved {
    /** The pool that the object goes back to. */
    @Nullable
    SavedPool<?> pool;

    /** The object that the pass was given before this one; in the pool, the next free one. */
    @Nullable
    Saved below;

    /** How often weights on the device had changed when forward ran. */
    long weightChanges;

    /** For subclasses, whose objects a pool makes. */
    protected Saved() {}
}
