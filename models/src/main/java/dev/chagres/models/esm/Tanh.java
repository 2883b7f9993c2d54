package dev.chagres.models.esm;

import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;

/**
 * {@code y = tanh(x)}.
 *
 * <p>Threading: the device's thread.
 */
final class Tanh extends Layer {
    private static final class Output extends SavedContext {
        private final SavedTensor y = new SavedTensor("the output");
    }

    private final ContextPool<Output> saved = new ContextPool<>(this, Output::new);

    Tanh(String name) {
        super(name);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Elementwise.tanh(x, y, pass.stream());
        Output output = saved.push(pass);
        if (output != null) {
            output.y.set(y);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Elementwise.tanhBackward(dy, saved.pop(pass).y.get(), dx, pass.stream());
    }
}
