package dev.chagres.pass;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * A record of one forward call of a layer, against which its backward call is checked.
 *
 * <p>Threading: the device's thread.
 */
final class LayerCall extends SavedContext {
    /** Empty if the input is freed with the call of the enclosing layer. */
    private final SavedTensor x = new SavedTensor("the input");

    private final SavedTensor y = new SavedTensor("the output");
    private boolean learns;
    private boolean inputLearns;
    private long inputColumns;

    /** Records what was called; {@link #keepInput} or {@link #forgetInput} follows. */
    void set(Tensor input, Tensor output, boolean newLearns) {
        y.set(output);
        learns = newLearns;
        inputLearns = input.requiresGradient();
        inputColumns = input.size(1);
    }

    void keepInput(Tensor input) {
        x.set(input);
    }

    void forgetInput() {
        x.clear();
    }

    /** Returns whether backward has anything to compute. */
    boolean learns() {
        return learns;
    }

    /** Returns whether backward computes the gradient of the input. */
    boolean inputLearns() {
        return learns && inputLearns;
    }

    long inputColumns() {
        return inputColumns;
    }

    /** Returns memory for the gradient of the input. */
    Tensor inputGradient(Scope scope) {
        Tensor output = y.get();
        return scope.tensor(output.dtype(), output.size(0), inputColumns);
    }

    /** Checks that the input is still there. */
    void ensureInput() {
        if (!x.isEmpty()) {
            x.get();
        }
    }

    void checkOutputGradient(Tensor dy, Stream stream) {
        Checks.like(stream, "dy", dy, y.get());
    }

    void checkInputGradient(Tensor dx, Stream stream) {
        if (x.isEmpty()) {
            Tensor output = y.get();
            Checks.matrix(stream, "dx", dx, output.dtype(), output.size(0), inputColumns);
        } else {
            Checks.like(stream, "dx", dx, x.get());
        }
        Checks.writable("dx", dx);
    }

    /** Checks that the gradient of the input overwrites nothing that backward reads. */
    void checkApart(Tensor dx) {
        if (!x.isEmpty()) {
            Checks.apart("dx", dx, "the input", x.get());
        }
        Checks.apart("dx", dx, "the output", y.get());
    }
}
