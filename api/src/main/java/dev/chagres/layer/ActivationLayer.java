package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.Activation;

/**
 * {@code y = activation(x)}, element by element; a gated activation halves the columns.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code activation.h}.
 */
public final class ActivationLayer extends Layer {
    private static final class Input extends Saved {
        private final Kept x = new Kept("the input");
    }

    private final Activation activation;
    private final SavedPool<Input> saved = new SavedPool<>(this, Input::new);

    /**
     * Applies {@code activation}.
     *
     * @param name in errors and reports
     */
    public ActivationLayer(String name, Activation activation) {
        super(name);
        this.activation = Checks.given("activation", activation);
    }

    /** Returns which activation. */
    public Activation activation() {
        return activation;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        activation.forward(x, y, pass.stream());
        Input input = saved.push(pass);
        if (input != null) {
            input.x.set(x);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        activation.backward(dy, saved.pop(pass).x.get(), dx, pass.stream());
    }

    @Override
    public long outputColumns(long inputColumns) {
        return activation.isGated() ? inputColumns / 2 : inputColumns;
    }

    @Override
    protected void checkInput(Tensor x) {
        if (activation.isGated() && x.size(1) % 2 != 0) {
            throw new IllegalArgumentException(
                    "x: " + name() + " expected an even number of columns, a half each for gate" + " and value, got "
                            + Checks.describe(x));
        }
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return name() + ": " + activation.forwardFunction() + " and " + activation.backwardFunction();
    }
}
