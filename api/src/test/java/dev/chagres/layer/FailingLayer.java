package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/** Copies what it gets, or calls the layer inside it, and then fails where it is told to. */
public final class FailingLayer extends Layer {
    /** The call that fails. */
    public enum Fails {
        NEVER,
        FORWARD,
        BACKWARD
    }

    private final @Nullable Layer inner;
    private Fails fails;

    private FailingLayer(@Nullable Layer inner, Fails fails) {
        super("failing");
        this.inner = inner;
        this.fails = fails;
    }

    /** Makes a layer that copies. */
    public static FailingLayer copying(Fails fails) {
        return new FailingLayer(null, fails);
    }

    /** Makes a layer that calls {@code inner}. */
    public static FailingLayer around(Layer inner, Fails fails) {
        return new FailingLayer(inner, fails);
    }

    /** Changes which calls fail from now on. */
    public void fails(Fails newFails) {
        fails = newFails;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        if (inner == null) {
            y.copyFrom(pass.stream(), x);
        } else {
            inner.forward(x, y, pass);
        }
        if (fails == Fails.FORWARD) {
            throw new IllegalStateException("forward of failing");
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        if (inner == null) {
            dx.copyFrom(pass.stream(), dy);
        } else {
            inner.backward(dy, dx, pass);
        }
        if (fails == Fails.BACKWARD) {
            throw new IllegalStateException("backward of failing");
        }
    }

    @Override
    public boolean requiresGradient() {
        return inner != null && inner.requiresGradient();
    }
}
