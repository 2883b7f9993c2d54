package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = attention(rotate(x Wqkv^T + bqkv)) Wo^T + bo}.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionBranch extends Layer {
    private static final class Heads extends Saved {
        private final Operand x = new Operand("the input");
        private final Operand attended = new Operand("the heads' output");
        private @Nullable RotaryEmbedding rotary;
        private @Nullable Sequences sequences;
    }

    private final Linear qkv;
    private final DotProductAttention attention;
    private final Linear projection;
    private final SavedPool<Heads> saved = new SavedPool<>(this, Heads::new);
    private @Nullable RotaryEmbedding rotary;

    AttentionBranch(long hidden, AttentionConfig config, Bias bias, Initializer initializer, ModelPlan plan) {
        super(plan.name());
        long width = (long) config.heads() * config.headDim();
        // The product of query, key and value stands under "qkv" beside the norm before it, as in TE.
        qkv = new Linear(hidden, 3 * width, bias, initializer, plan.child("qkv").child("linear"));
        attention = new DotProductAttention(plan.name(), config);
        projection = new Linear(width, hidden, bias, initializer, plan.child("projection"));
    }

    Linear qkv() {
        return qkv;
    }

    Linear projection() {
        return projection;
    }

    void rotate(RotaryEmbedding newRotary) {
        if (Checks.given("rotary", newRotary).headDim() != attention.config().headDim()) {
            throw new IllegalArgumentException(
                    "rotary: expected head dimension " + attention.config().headDim() + ", got " + newRotary.headDim());
        }
        rotary = newRotary;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Stream stream = pass.stream();
        Sequences sequences = pass.sequences().queries();
        sequences.checkTokens("x", x, x.size(0));
        RotaryEmbedding present = rotary;
        if (present != null) {
            present.checkSequences(sequences, stream);
        }
        Heads heads = saved.take();
        Scope keptIn = pass.isSaving() ? pass.kept() : null;
        qkv.products().prepare(x, heads.x, keptIn, pass);
        Tensor projected = pass.kept().tensor(x.dtype(), x.size(0), qkv.outputColumns(x.size(1)));
        qkv.products().product(heads.x, projected, pass);
        if (present != null) {
            present.rotatePacked(projected, sequences, stream);
        }
        Tensor attended = attention.forwardPacked(projected, pass);
        projection.products().prepare(attended, heads.attended, keptIn, pass);
        projection.products().product(heads.attended, y, pass);
        heads.rotary = present;
        heads.sequences = sequences;
        saved.keep(heads, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Heads heads = saved.pop(pass);
        LinearProducts first = qkv.products();
        LinearProducts last = projection.products();
        last.begin(dy, heads.attended, pass);
        last.parameterGradients(heads.attended, pass);
        if (!qkv.requiresGradient() && !heads.x.learns()) {
            attention.discard(pass);
            return;
        }
        Tensor dattended = pass.temporary()
                .tensor(dy.dtype(), dy.size(0), projection.weight().shape().size(1));
        Tensor dqkv = pass.temporary().tensor(dy.dtype(), dy.size(0), 3 * dattended.size(1));
        last.inputGradient(heads.attended, dattended, pass);
        attention.backwardPacked(dattended, dqkv, pass);
        if (heads.rotary != null && heads.sequences != null) {
            heads.rotary.rotatePackedBack(dqkv, heads.sequences, pass.stream());
        }
        first.begin(dqkv, heads.x, pass);
        first.parameterGradients(heads.x, pass);
        if (heads.x.learns()) {
            first.inputGradient(heads.x, dx, pass);
        }
    }

    @Override
    public long outputColumns(long inputColumns) {
        return projection.outputColumns(inputColumns);
    }

    @Override
    public boolean requiresGradient() {
        return qkv.requiresGradient() || projection.requiresGradient();
    }

    @Override
    protected void checkInput(Tensor x) {
        qkv.checkInput(x);
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return qkv.explain(x, pass)
                + (rotary == null ? "" : "\n" + name() + ": rotation in place by ops_rotary_packed")
                + "\n" + attention.explain(x.dtype(), pass) + "\n" + projection.explain(x, pass);
    }
}
