package dev.chagres.pass;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import org.jspecify.annotations.Nullable;

/**
 * A tensor that forward keeps for backward. {@link #get} throws if its memory was handed out again since.
 *
 * <p>Threading: the device's thread.
 */
public final class SavedTensor {
    private final String what;
    private @Nullable Tensor tensor;
    private int issue;

    /**
     * Makes an empty holder.
     *
     * @param what names the tensor in errors, such as {@code the input}
     */
    public SavedTensor(String what) {
        this.what = Checks.given("what", what);
    }

    /** Keeps {@code newTensor}. */
    public void set(Tensor newTensor) {
        issue = Inside.issue(Checks.given("newTensor", newTensor));
        tensor = newTensor;
    }

    /** Forgets the tensor. */
    public void clear() {
        tensor = null;
    }

    /** Returns whether this holds {@code other}, with the memory that {@code other} has now. */
    public boolean isOf(Tensor other) {
        return Checks.given("other", other) == tensor && Inside.issue(other) == issue;
    }

    /** Returns whether nothing is kept. */
    public boolean isEmpty() {
        return tensor == null;
    }

    /**
     * Returns the tensor as forward left it.
     *
     * @throws IllegalStateException when nothing is kept, or the tensor's scope was closed or restarted since
     */
    public Tensor get() {
        Tensor present = tensor;
        if (present == null) {
            throw new IllegalStateException(what + " was not kept by forward");
        }
        if (Inside.issue(present) != issue || !present.isLive()) {
            throw new IllegalStateException(what
                    + " has lost its memory since forward: its scope was restarted or closed;" + " run forward again");
        }
        return present;
    }

    /** Returns what is kept, and the tensor. */
    @Override
    public String toString() {
        return what + ": " + (tensor == null ? "nothing" : tensor);
    }
}
