package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;

/**
 * {@code y = activation(x)}, element by element; a gated activation halves the columns.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code activation.h}; {@code ops_gelu_erf} in {@code ops.h}.
 */
public final class ActivationLayer extends Layer {
    private static final class Input extends SavedContext {
        private final SavedTensor x = new SavedTensor("the input");
    }

    private final MlpActivation activation;
    private final ContextPool<Input> saved = new ContextPool<>(this, Input::new);

    /**
     * Applies {@code activation}.
     *
     * @param name in errors and reports
     */
    public ActivationLayer(String name, Activation activation) {
        super(name);
        this.activation = MlpActivation.of(Checks.given("activation", activation));
    }

    /**
     * Applies {@link Activation#CLAMPED_SWIGLU} with these numbers.
     *
     * @param name in errors and reports
     */
    public ActivationLayer(String name, ClampedSwiglu clampedSwiglu) {
        super(name);
        activation = MlpActivation.of(Checks.given("clampedSwiglu", clampedSwiglu));
    }

    /**
     * Applies {@link Activation#GELU} of this form.
     *
     * @param name in errors and reports
     */
    public ActivationLayer(String name, GeluForm gelu) {
        super(name);
        activation = MlpActivation.of(Checks.given("gelu", gelu));
    }

    /** Returns which activation. */
    public Activation activation() {
        return activation.kind();
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        activation.forward(x, y, null, pass.stream());
        Input input = saved.push(pass);
        if (input != null) {
            input.x.set(x);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        activation.backward(dy, saved.pop(pass).x.get(), dx, null, pass.stream());
    }

    @Override
    public long outputColumns(long inputColumns) {
        return activation.kind().isGated() ? inputColumns / 2 : inputColumns;
    }

    @Override
    public void checkInput(Tensor x) {
        if (activation.kind().isGated() && x.size(1) % 2 != 0) {
            throw new IllegalArgumentException(
                    "x: " + name() + " expected an even number of columns, a half each for gate" + " and value, got "
                            + Checks.describe(x));
        }
    }

    @Override
    public String summary() {
        return activation.toString();
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        return name() + ": " + activation.forwardFunction() + " and " + activation.backwardFunction();
    }
}
