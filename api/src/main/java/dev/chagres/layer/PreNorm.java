package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import org.jspecify.annotations.Nullable;

/**
 * A norm and what follows it: {@code y = branch(norm(x))}, or {@code y = branch(x)} without norm. A residual stream takes both
 * apart and puts its sum between them.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class PreNorm extends Layer
        permits CrossAttention, LayerNormLinear, LayerNormMlp, MultiheadAttention, ParallelBranches {
    private final @Nullable NormLayer norm;
    private final Layer branch;
    private final @Nullable Linear reader;

    /** {@code reader}: the layer of the branch that alone reads the norm's output; null where backward reads it, too. */
    PreNorm(String name, @Nullable NormLayer norm, Layer branch, @Nullable Linear reader) {
        super(name);
        this.norm = norm;
        this.branch = branch;
        this.reader = reader;
    }

    /** Returns whether a norm stands before the rest. */
    public final boolean hasNorm() {
        return norm != null;
    }

    /**
     * Returns the norm.
     *
     * @throws IllegalStateException when there is none
     */
    public final NormLayer norm() {
        NormLayer present = norm;
        if (present == null) {
            throw new IllegalStateException(name() + " was made without a norm; ask hasNorm() first");
        }
        return present;
    }

    /** Returns the norm, or null when there is none. */
    final @Nullable NormLayer normOrNull() {
        return norm;
    }

    /** Returns what follows the norm. */
    final Layer branch() {
        return branch;
    }

    /** Returns whether backward reads the norm's output of {@code rows} itself, not a copy in eight bits. */
    final boolean keepsNormed(long rows, Pass pass) {
        return pass.isSaving() && (reader == null || reader.input().keepsWhole(rows, pass));
    }

    /**
     * Takes memory for what the norm fills besides: its output in eight bits where the norm casts it itself, and then nothing
     * writes {@code normed}; or the largest magnitude of {@code normed}, without a scale.
     *
     * @return what the norm fills, or null where it writes {@code normed} alone
     */
    final @Nullable QuantizedTensor offer(Tensor normed, Pass pass) {
        return reader != null && NormLayer.casts(normed) ? reader.fusedCast().offer(normed, pass) : null;
    }

    /** Enqueues the branch, of what the norm gave; without a norm, of the layer's input. */
    final void runBranch(Tensor x, Tensor y, Pass pass) {
        if (norm == null || keepsNormed(x.size(0), pass)) {
            branch.forward(x, y, pass);
        } else {
            branch.forwardOfTemporary(x, y, pass);
        }
    }

    @Override
    protected final void run(Tensor x, Tensor y, Pass pass) {
        if (norm == null) {
            runBranch(x, y, pass);
            return;
        }
        Scope normedIn = keepsNormed(x.size(0), pass) ? pass.kept() : pass.temporary();
        Tensor normed = normedIn.like(x);
        norm.run(x, normed, offer(normed, pass), pass);
        Inside.requireGradient(normed, x.requiresGradient() || norm.requiresGradient());
        runBranch(normed, y, pass);
    }

    @Override
    protected final void gradient(Tensor dy, Tensor dx, Pass pass) {
        if (norm == null) {
            branch.backward(dy, dx, pass);
            return;
        }
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
        return anyRequiresGradient(norm, branch);
    }

    @Override
    protected final void checkInput(Tensor x) {
        if (norm == null) {
            branch.checkInput(x);
        } else {
            norm.checkInput(x);
        }
    }

    @Override
    public final String explain(Tensor x, Pass pass) {
        return name() + ":\n"
                + ((norm == null ? "" : norm.explain(x, pass) + explainCasts(x, pass) + "\n") + branch.explain(x, pass))
                        .indent(2)
                        .stripTrailing();
    }

    private String explainCasts(Tensor x, Pass pass) {
        if (reader == null || !NormLayer.casts(x)) {
            return "";
        }
        if (reader.fusedCast().takesCopies(Math.max(1, x.size(0)), pass)) {
            return "; ops_residual_norm computes its output in eight bits alone, both copies, with or without a sum";
        }
        return reader.fusedCast().scalesByAmax(pass)
                ? "; ops_residual_norm computes its output and the largest magnitude in it, with or without a sum"
                : "";
    }
}
