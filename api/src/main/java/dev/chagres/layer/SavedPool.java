package dev.chagres.layer;

import dev.chagres.internal.Checks;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The saved objects of one layer: forward pushes one onto the pass, backward pops it. Objects are used again, so that a steady
 * step makes none.
 *
 * <p>Threading: the device's thread.
 *
 * @param <S> the layer's class of saved objects
 */
public final class SavedPool<S extends Saved> {
    private final Object owner;
    private final Supplier<S> maker;
    private @Nullable Saved free;

    /**
     * Makes an empty pool.
     *
     * @param owner whose forward calls push; errors name a layer by its name, another owner by its {@code toString}
     * @param maker makes one object
     */
    public SavedPool(Object owner, Supplier<S> maker) {
        this.owner = Checks.given("owner", owner);
        this.maker = Checks.given("maker", maker);
    }

    /**
     * Puts an object on top of what the pass has saved.
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

    /** Takes an object out of the pool without pushing it yet; {@link #keep}, {@link #pushTaken} or {@link #recycle} follows. */
    S take() {
        Saved object = free;
        if (object == null) {
            object = Checks.given("maker.get()", maker.get());
            object.pool = this;
        } else {
            free = object.below;
        }
        return typed(object);
    }

    /** Puts an object that {@link #take} gave on top of what the pass has saved, or back while the pass saves nothing. */
    void keep(S object, Pass pass) {
        if (pass.isSaving()) {
            pass.saved().push(object);
        } else {
            recycle(object);
        }
    }

    void pushTaken(S object, Pass pass) {
        pass.saved().push(object);
    }

    /**
     * Takes the object on top of what the pass has saved.
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

    /** Returns the object on top, which stays there; refuses as {@link #pop}. */
    S peek(Pass pass) {
        Saved top = pass.saved().top();
        if (top != null) { // Else no gradient of the micro-batch is missing that a backward call could write.
            pass.gradients().backwardAsked();
        }
        if (top == null || top.pool != this) {
            throw new IllegalStateException("backward of " + name() + " was called, but " + whyNot(top, pass));
        }
        pass.gradients().backwardOf(top);
        return typed(top);
    }

    private String whyNot(@Nullable Saved top, Pass pass) {
        if (top != null && top.pool != null) {
            return "the last forward was of " + nameOf(top.pool) + "; call backward in the reverse order of forward";
        }
        return pass.isTraining()
                ? "no forward call waits for its backward; call forward first, while the pass saves"
                : "this pass evaluates and saves nothing; make one with Pass.training";
    }

    /** Two layers may have one name, such as those of two plans. */
    private String nameOf(SavedPool<?> other) {
        String name = other.name();
        return name.equals(name()) ? "another " + name : name;
    }

    private String name() {
        return Layer.nameOf(owner);
    }

    /** Takes back an object that nobody popped. */
    void recycle(Saved object) {
        object.below = free;
        free = object;
    }

    @SuppressWarnings("unchecked") // What this pool has made is an S.
    private S typed(Saved object) {
        return (S) object;
    }

    /** Returns whose saved objects these are. */
    @Override
    public String toString() {
        return "saved objects of " + Layer.nameOf(owner);
    }
}
