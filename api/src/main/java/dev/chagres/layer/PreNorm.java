package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;

/**
 * A norm and what follows it: {@code y = branch(norm(x))}. A residual stream takes both apart and puts its sum between them.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class PreNorm extends Layer permits CrossAttention, LayerNormLinear, LayerNormMlp, MultiheadAttention {
    private final NormLayer norm;
    private final Layer branch;
    private final LinearProducts reader;

    /** {@code reader}: the product of the branch that reads the norm's output, which nothing else reads. */
    PreNorm(String name, NormLayer norm, Layer branch, LinearProducts reader) {
        super(name);
        this.norm = norm;
        this.branch = branch;
        this.reader = reader;
    }

    /** Returns the norm. */
    public final NormLayer norm() {
        return norm;
    }

    /** Returns what follows the norm. */
    final Layer branch() {
        return branch;
    }

    /** Returns whether backward reads the norm's output of {@code rows} itself, not a copy in eight bits. */
    final boolean keepsNormed(long rows, Pass pass) {
        return pass.isSaving() && reader.keepsWhole(rows, pass);
    }

    /** Enqueues the branch, whose input goes back with the caller's call unless {@link #keepsNormed}. */
    final void runBranch(Tensor normed, Tensor y, Pass pass) {
        if (keepsNormed(normed.size(0), pass)) {
            branch.forward(normed, y, pass);
        } else {
            branch.forwardOfPassing(normed, y, pass);
        }
    }

    @Override
    protected final void run(Tensor x, Tensor y, Pass pass) {
        Scope normedIn = keepsNormed(x.size(0), pass) ? pass.kept() : pass.temporary();
        Tensor normed = normedIn.like(x);
        norm.run(x, normed, pass);
        Inside.requireGradient(normed, x.requiresGradient() || norm.requiresGradient());
        runBranch(normed, y, pass);
    }

    @Override
    protected final void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor dnormed =
                pass.temporary().tensor(dy.dtype(), dy.size(0), norm.config().size());
        branch.backward(dy, dnormed, pass);
        if (norm.learns(pass)) {
            norm.gradient(dnormed, dx, pass);
        } else {
            norm.discard(pass);
        }
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
