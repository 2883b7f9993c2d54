package dev.chagres.pass;

import dev.chagres.internal.Checks;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The saved objects of one layer: forward pushes one onto the pass, backward pops it. Objects are reused, so that repeated steps make no
 * garbage.
 *
 * <p>Threading: the device's thread.
 *
 * @param <S> the layer's class of saved objects
 */
public final class ContextPool<S extends SavedContext> {
    private final Object owner;
    private final Supplier<S> maker;
    private @Nullable SavedContext free;

    /**
     * Makes an empty pool.
     *
     * @param owner whose forward calls push; errors name a layer by its name, another owner by its {@code toString}
     * @param maker makes one object
     */
    public ContextPool(Object owner, Supplier<S> maker) {
        this.owner = Checks.given("owner", owner);
        this.maker = Checks.given("maker", maker);
    }

    /**
     * Pushes an object onto the pass.
     *
     * @return the object, for forward to fill; null while the pass saves nothing
     */
    public @Nullable S push(Pass pass) {
        return Checks.given("pass", pass).isSaving() ? pushAlways(pass) : null;
    }

    S pushAlways(Pass pass) {
        S object = take();
        pass.saved().push(object);
        return object;
    }

    /** Takes an object out of the pool without pushing it yet, so that a call that fails leaves the pass as it was; {@link #keep} follows. */
    public S take() {
        SavedContext object = free;
        if (object == null) {
            object = Checks.given("maker.get()", maker.get());
            object.pool = this;
        } else {
            free = object.below;
        }
        return typed(object);
    }

    /** Pushes an object from {@link #take} onto the pass, or returns it to the pool while the pass saves nothing. */
    public void keep(S object, Pass pass) {
        if (pass.isSaving()) {
            pass.saved().push(object);
        } else {
            recycle(object);
        }
    }

    /**
     * Pops the object that was pushed last onto the pass.
     *
     * @throws IllegalStateException when another forward call came last: its backward must be called first
     */
    public S pop(Pass pass) {
        S object = peek(Checks.given("pass", pass));
        pass.saved().pop();
        pass.gradients().backwardAccepted();
        recycle(object);
        return object;
    }

    /**
     * Returns the object that {@link #pop} would return, without popping it.
     *
     * @throws IllegalStateException as {@link #pop} does
     */
    public S peek(Pass pass) {
        SavedContext top = Checks.given("pass", pass).saved().top();
        if (top != null) { // With nothing saved, no backward call of this micro-batch is missing.
            pass.gradients().backwardAsked();
        }
        if (top == null || top.pool != this) {
            throw new IllegalStateException("backward of " + name() + " was called, but " + whyNot(top, pass));
        }
        pass.gradients().backwardOf(top);
        return typed(top);
    }

    /** Returns whether {@link #pop} would return an object. */
    boolean isNext(Pass pass) {
        SavedContext top = pass.saved().top();
        return top != null && top.pool == this;
    }

    private String whyNot(@Nullable SavedContext top, Pass pass) {
        if (top != null && top.pool != null) {
            return "the last forward was of " + nameOf(top.pool) + "; call backward in the reverse order of forward";
        }
        return pass.isTraining()
                ? "no forward call waits for its backward; call forward first, while the pass saves"
                : "this pass evaluates and saves nothing; make one with Pass.training";
    }

    /** Adds more than the name if two layers have the same one, as layers of two plans may. */
    private String nameOf(ContextPool<?> other) {
        String name = other.name();
        return name.equals(name()) ? "another " + name : name;
    }

    private String name() {
        return Layer.nameOf(owner);
    }

    /** Takes back an object that was pushed but not popped. */
    void recycle(SavedContext object) {
        object.below = free;
        free = object;
    }

    @SuppressWarnings("unchecked") // What this pool has made is an S.
    private S typed(SavedContext object) {
        return (S) object;
    }

    /** Returns the owner's name. */
    @Override
    public String toString() {
        return "saved objects of " + Layer.nameOf(owner);
    }
}
