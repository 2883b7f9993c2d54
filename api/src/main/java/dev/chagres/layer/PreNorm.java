package dev.chagres.layer;

import dev.chagres.Tensor;

/**
 * A norm and what follows it: {@code y = branch(norm(x))}. A residual stream takes both apart and puts its sum between them.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class PreNorm extends Layer permits CrossAttention, LayerNormLinear, LayerNormMlp, MultiheadAttention {
    private final NormLayer norm;
    private final Layer branch;

    PreNorm(String name, NormLayer norm, Layer branch) {
        super(name);
        this.norm = norm;
        this.branch = branch;
    }

    /** Returns the norm. */
    public final NormLayer norm() {
        return norm;
    }

    /** Returns what follows the norm. */
    final Layer branch() {
        return branch;
    }

    @Override
    protected final void run(Tensor x, Tensor y, Pass pass) {
        Tensor normed = pass.kept().like(x);
        norm.forward(x, normed, pass);
        branch.forward(normed, y, pass);
    }

    @Override
    protected final void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor dnormed =
                pass.temporary().tensor(dy.dtype(), dy.size(0), norm.config().size());
        branch.backward(dy, dnormed, pass);
        norm.backward(dnormed, dx, pass);
    }

    @Override
    public final long outputColumns(long inputColumns) {
        return branch.outputColumns(inputColumns);
    }

    @Override
    public final boolean requiresGradient() {
        return norm.requiresGradient() || branch.requiresGradient();
    }

    @Override
    protected final void checkInput(Tensor x) {
        norm.checkInput(x);
    }

    @Override
    public final String explain(Tensor x, Pass pass) {
        return name() + ":\n"
                + (norm.explain(x, pass) + "\n" + branch.explain(x, pass))
                        .indent(2)
                        .stripTrailing();
    }
}
