package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Dropout;
import dev.chagres.Philox;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.TensorCell;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = residual + dropout(x)}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_add}, {@code ops_dropout_add} in {@code ops.h}.
 */
public final class Residual {
    private static final int ELEMENTS_PER_DRAW = 4;

    private final Dropout dropout;

    /** Adds with this dropout. */
    public Residual(Dropout dropout) {
        this.dropout = dropout;
    }

    /**
     * What backward needs.
     *
     * @param output y
     * @param mask one bit an element, BYTE; null without dropout
     */
    public record Saved(Tensor output, @Nullable Tensor mask) {}

    /** Returns whether nothing is dropped. */
    boolean isPlain() {
        return dropout.generator() == null;
    }

    /**
     * Enqueues the sum.
     *
     * @param x what is dropped and added
     * @param residual like {@code x}
     * @param scope receives y, like {@code x}
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Saved forward(Tensor x, Tensor residual, Scope scope) {
        Checks.floats(scope, "x", x);
        Checks.like(scope, "residual", residual, x.cell());
        return sum(x, residual, scope.like(x), scope);
    }

    /** Enqueues the sum in the place of {@code x}, which no backward pass needs afterwards. */
    Saved forwardInPlace(Tensor x, Tensor residual, Scope scope) {
        return sum(x, residual, x, scope);
    }

    /** Checks that a record is of such a sum and still holds what forward left there. */
    void check(Saved saved, Scope scope) {
        TensorCell output = Checks.floats(scope, "saved.output", saved.output);
        Tensor mask = saved.mask;
        if ((mask == null) != isPlain()) {
            throw new IllegalArgumentException("saved: expected the record of a sum with dropout probability "
                    + dropout.probability() + ", got one " + (mask == null ? "without" : "with") + " dropout");
        }
        if (mask != null) {
            Checks.vector(scope, "saved.mask", mask, DType.BYTE, (output.count() + 7) / 8);
        }
    }

    private Saved sum(Tensor x, Tensor residual, Tensor y, Scope scope) {
        Tensor mask = null;
        Philox generator = dropout.generator();
        if (generator == null) {
            Elementwise.add(scope.stream(), x.cell(), residual.cell(), y.cell());
        } else {
            mask = scope.tensor(DType.BYTE, (x.count() + 7) / 8);
            Tensor state = generator.next(scope, (x.count() + ELEMENTS_PER_DRAW - 1) / ELEMENTS_PER_DRAW);
            Elementwise.dropoutAdd(
                    scope.stream(),
                    x.cell(),
                    residual.cell(),
                    y.cell(),
                    mask.cell(),
                    state.cell(),
                    dropout.probability());
        }
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.output != y || saved.mask != mask) {
            saved = new Saved(y, mask);
        }
        return scope.keep(saved);
    }

    /**
     * Enqueues the gradient of {@code x}; that of {@code residual} is {@code dy} itself.
     *
     * @param dy gradient of the output, like it
     * @param scope receives the gradient, unless nothing is dropped: then it is {@code dy}
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Scope scope) {
        check(saved, scope);
        Checks.like(scope, "dy", dy, saved.output.cell());
        if (saved.mask == null) {
            return dy;
        }
        Tensor dx = scope.like(dy);
        Elementwise.dropoutBackward(scope.stream(), dy.cell(), saved.mask.cell(), dx.cell(), dropout.probability());
        return dx;
    }
}
