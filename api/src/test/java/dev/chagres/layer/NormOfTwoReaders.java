package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;

/** {@code y = layer(x) + norm(x)}: what the layer's norm computes has a second reader. */
final class NormOfTwoReaders extends Layer {
    private final NormedBranch layer;

    NormOfTwoReaders(NormedBranch layer) {
        super("two readers");
        this.layer = layer;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Tensor normed = pass.kept().like(x);
        Tensor output = layer.forwardWithNorm(x, normed, pass);
        Elementwise.add(output, normed, y, pass.stream());
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        layer.backwardWithNorm(dy, dy, dx, pass);
    }

    @Override
    public boolean requiresGradient() {
        return layer.requiresGradient();
    }

    @Override
    public void checkInput(Tensor x) {
        layer.checkInput(x);
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        return layer.explain(x, pass);
    }
}
