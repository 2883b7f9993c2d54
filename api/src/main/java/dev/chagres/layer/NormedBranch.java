package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.NormLayer.NormFusion;
import dev.chagres.layer.ResidualStream.ParallelBranches;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A norm and the branch after it: {@code y = branch(norm(x))}, or {@code y = branch(x)} without norm. A residual stream calls them
 * separately, with its sum between them.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class NormedBranch extends Layer
        permits AttentionLayer, LayerNormLinear, LayerNormMlp, ParallelBranches {
    private final @Nullable NormLayer norm;
    /** The branch after the norm. */
    final Layer branch;

    private final @Nullable Linear reader;
    private final @Nullable Linear last;
    /** The product whose input backward can recompute by the norm; null where there is none. */
    private @Nullable Linear recomputedFor;
    /** Output of the norm in the current call; null if its caller does not ask for it. */
    private @Nullable Tensor normOutput;
    /** The gradient of the norm's output from other readers, during backward; null without one. */
    private @Nullable Tensor normGradient;

    /**
     * Puts a norm before a branch.
     *
     * @param reader the layer of the branch that is the only reader of the norm's output; null if backward reads it, too
     * @param last the layer of the branch that gives its output; null where that is a sum
     */
    NormedBranch(String name, @Nullable NormLayer norm, Layer branch, @Nullable Linear reader, @Nullable Linear last) {
        super(name);
        this.norm = norm;
        this.branch = branch;
        this.reader = reader;
        this.last = last;
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

    /** Says which product reads the norm's output, so that backward can recompute it. Does nothing without a norm. */
    final void recomputable(Linear product) {
        NormLayer present = norm;
        if (present != null) {
            product.input().comesFrom(present);
            recomputedFor = product;
        }
    }

    /** Makes backward recompute the norm's output in every pass. */
    final void recomputeNorm() {
        if (recomputedFor != null) {
            recomputedFor.input().recompute();
        }
    }

    private boolean isRecomputed(Pass pass) {
        return recomputedFor != null && recomputedFor.input().isRecomputed(pass);
    }

    /** Returns whether forward keeps the norm's output of {@code rows} itself, not a copy in eight bits, for backward. */
    final boolean keepsNormed(long rows, Pass pass) {
        return pass.isSaving() && !isRecomputed(pass) && readsNormed(rows, pass);
    }

    /** Returns whether backward reads the norm's output of {@code rows} itself, not a copy in eight bits. */
    private boolean readsNormed(long rows, Pass pass) {
        return reader == null || reader.input().keepsWhole(rows, pass);
    }

    /** Says what the norm writes for the branch, of which {@code normed} is the output in the model's type. */
    final Target begin(Tensor normed, Pass pass) {
        return reader != null && NormLayer.casts(normed) ? reader.input().begin(normed, pass) : norm().plain(normed);
    }

    /** Enqueues the branch, with the norm's output; without a norm, with the layer's input. */
    final void runBranch(Tensor x, Tensor y, Pass pass) {
        if (norm == null || keepsNormed(x.size(0), pass)) {
            branch.forward(x, y, pass);
        } else {
            branch.forwardOfTemporary(x, y, pass);
        }
    }

    /** Returns whether the branch ends with a product that adds a bias. */
    final boolean endsWithBias() {
        return last != null && last.hasBias();
    }

    /**
     * Enqueues the branch as {@link #runBranch} does, but without the bias of its last product, which it returns for the sum that the
     * caller enqueues next; null where there is none.
     */
    final @Nullable Tensor runBranchWithoutBias(Tensor x, Tensor y, Pass pass) {
        Linear product = last;
        if (product == null || !product.hasBias()) {
            runBranch(x, y, pass);
            return null;
        }
        // Read before the branch: sharded weights then stay gathered until the end of the caller.
        Tensor bias = product.bias().weight(GradientOwner.NESTED_CALL);
        product.products().leaveBias(true);
        try {
            runBranch(x, y, pass);
        } finally {
            product.products().leaveBias(false);
        }
        return bias;
    }

    /**
     * Enqueues the layer, and also returns its norm's output.
     *
     * @param x [T, columns], as for {@link Layer#forward(Tensor, Pass)}
     * @param normed receives norm(x), like x, in memory of the caller's; nothing may write to it before backward, which may
     *     read it
     * @return y, as {@link Layer#forward(Tensor, Pass)} returns it, with the same bits
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or normed shares memory with x
     * @throws IllegalStateException when there is no norm, or the pass was not begun
     */
    public final Tensor forwardWithNorm(Tensor x, Tensor normed, Pass pass) {
        checkNormed(normed, x, pass);
        normOutput = normed;
        try {
            return forward(x, pass);
        } finally {
            normOutput = null;
        }
    }

    /**
     * Enqueues the layer into memory of the caller, and also returns its norm's output.
     *
     * @param y receives the output
     * @param normed as for {@link #forwardWithNorm(Tensor, Tensor, Pass)}
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when there is no norm, or the pass was not begun
     */
    public final void forwardWithNorm(Tensor x, Tensor y, Tensor normed, Pass pass) {
        checkNormed(normed, x, pass);
        Checks.apart("normed", normed, "y", Checks.given("y", y));
        normOutput = normed;
        try {
            forward(x, y, pass);
        } finally {
            normOutput = null;
        }
    }

    /**
     * Enqueues the gradients if the norm's output has readers besides this layer: the gradient of norm(x) is this layer's plus {@code
     * dnormed}.
     *
     * @param dy gradient of the output, like it
     * @param dnormed gradient of norm(x) from its other readers, like x
     * @return gradient of the input, as {@link Layer#backward(Tensor, Pass)} returns it
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     * @throws IllegalStateException when there is no norm, or the last forward call of the pass was another layer's
     */
    public final Tensor backwardWithNorm(Tensor dy, Tensor dnormed, Pass pass) {
        checkNormGradient(dnormed, dy, pass);
        normGradient = dnormed;
        try {
            return backward(dy, pass);
        } finally {
            normGradient = null;
        }
    }

    /**
     * Enqueues the same into memory of the caller.
     *
     * @param dx receives the gradient of the input, as for {@link Layer#backward(Tensor, Tensor, Pass)}; may be {@code dnormed}
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     * @throws IllegalStateException when there is no norm, or the last forward call of the pass was another layer's
     */
    public final void backwardWithNorm(Tensor dy, Tensor dnormed, Tensor dx, Pass pass) {
        checkNormGradient(dnormed, dy, pass);
        Checks.apartOrSame("dx", Checks.given("dx", dx), "dnormed", dnormed);
        normGradient = dnormed;
        try {
            backward(dy, dx, pass);
        } finally {
            normGradient = null;
        }
    }

    private void checkNormed(Tensor normed, Tensor x, Pass pass) {
        norm();
        Checks.given("pass", pass).ensureBegun(this);
        Checks.floats(pass.stream(), "x", x);
        Checks.like(pass.stream(), "normed", normed, x);
        Checks.written("normed", normed, "x", x);
    }

    private void checkNormGradient(Tensor dnormed, Tensor dy, Pass pass) {
        long columns = norm().config().size();
        Checks.given("pass", pass).ensureBegun(this);
        Checks.matrix(pass.stream(), "dy", dy);
        Checks.matrix(pass.stream(), "dnormed", dnormed, dy.dtype(), dy.size(0), columns);
    }

    @Override
    protected final void run(Tensor x, Tensor y, Pass pass) {
        if (norm == null) {
            runBranch(x, y, pass);
            return;
        }
        boolean learns = x.requiresGradient() || norm.requiresGradient();
        Tensor normed = normOutput;
        if (normed == null) {
            normed = (keepsNormed(x.size(0), pass) ? pass.kept() : pass.temporary()).like(x);
            norm.run(x, begin(normed, pass), pass);
        } else {
            norm.run(x, begin(normed, pass).with(normed), pass);
        }
        Inside.requireGradient(normed, learns && pass.isSaving());
        runBranch(normed, y, pass);
    }

    @Override
    protected final void gradient(Tensor dy, Tensor dx, Pass pass) {
        if (norm == null) {
            branch.backward(dy, dx, pass);
            return;
        }
        Tensor fromElsewhere = normGradient;
        Tensor dnormed =
                pass.temporary().tensor(dy.dtype(), dy.size(0), norm.config().size());
        branch.backward(dy, dnormed, pass);
        if (!norm.learns(pass)) {
            norm.discard(pass);
            return;
        }
        if (fromElsewhere != null) {
            Elementwise.add(dnormed, fromElsewhere, dnormed, pass.stream());
        }
        norm.gradient(dnormed, dx, pass);
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
    public final void checkInput(Tensor x) {
        if (norm == null) {
            branch.checkInput(x);
        } else {
            norm.checkInput(x);
        }
    }

    @Override
    public final String summary() {
        return branch.summary();
    }

    @Override
    public final List<Layer> inside() {
        List<Layer> layers = new ArrayList<>();
        if (norm != null) {
            layers.add(norm);
        }
        layers.addAll(branch.inside().isEmpty() ? List.of(branch) : branch.inside());
        return layers;
    }

    @Override
    protected final String explanation(Tensor x, Pass pass) {
        return explain(x, NormFusion.ALONE, pass);
    }

    /** Returns the same where the norm stands in a residual stream. */
    final String explain(Tensor x, NormFusion fusion, Pass pass) {
        String first = norm == null ? "" : explainNorm(norm, x, fusion, pass) + "\n";
        return name() + ":\n"
                + (first + branch.explainInside(x, pass)).indent(2).stripTrailing();
    }

    private String explainNorm(NormLayer present, Tensor x, NormFusion fusion, Pass pass) {
        String besides = fusion.casts() ? explainCasts(x, pass) : "";
        String text = present.explain(x, fusion, besides);
        if (!isRecomputed(pass)) {
            return text;
        }
        if (reader != null && reader.weight().isFrozen()) {
            return text + "; its output is not saved, for no gradient needs it";
        }
        return readsNormed(x.size(0), pass)
                ? text + "; its output is not saved: backward recomputes it by "
                        + present.explainRecomputation(x, fusion, besides)
                : text + "; its output is saved in eight bits only, and not recomputed";
    }

    private String explainCasts(Tensor x, Pass pass) {
        if (reader == null || !NormLayer.casts(x)) {
            return "";
        }
        if (reader.input().isCastByProducer(Math.max(1, x.size(0)), pass)) {
            return "writes its output only in eight bits, rowwise and columnwise";
        }
        return reader.input().scalesByAmax(pass) ? "computes the amax of its output, too" : "";
    }
}
