package dev.chagres.layer;

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
        private final Kept x = new Kept("the input");
        private final Kept attended = new Kept("the heads' output");
        private @Nullable RotaryEmbedding rotary;
        private @Nullable Sequences sequences;
    }

    private final Linear qkv;
    private final DotProductAttention attention;
    private final Linear projection;
    private final SavedPool<Heads> saved = new SavedPool<>(this, Heads::new);
    private @Nullable RotaryEmbedding rotary;

    AttentionBranch(long hidden, AttentionConfig config, Initializer initializer, ModelPlan plan) {
        super(plan.name());
        long width = (long) config.heads() * config.headDim();
        // The product of query, key and value stands under "qkv" beside the norm before it, as in TE.
        qkv = new Linear(hidden, 3 * width, initializer, plan.child("qkv").child("linear"));
        attention = new DotProductAttention(plan.name(), config);
        projection = new Linear(width, hidden, initializer, plan.child("projection"));
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
        Tensor projected = pass.kept().tensor(x.dtype(), x.size(0), qkv.outputColumns(x.size(1)));
        qkv.product(x, projected, stream);
        if (present != null) {
            present.rotatePacked(projected, sequences, stream);
        }
        Tensor attended = attention.forwardPacked(projected, pass);
        projection.product(attended, y, stream);
        Heads heads = saved.push(pass);
        if (heads != null) {
            heads.x.set(x);
            heads.attended.set(attended);
            heads.rotary = present;
            heads.sequences = sequences;
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Heads heads = saved.pop(pass);
        Stream stream = pass.stream();
        Tensor x = heads.x.get();
        Tensor attended = heads.attended.get();
        projection.parameterGradients(dy, attended, pass);
        if (!qkv.requiresGradient() && !x.requiresGradient()) {
            attention.discard(pass);
            return;
        }
        Tensor dattended = pass.temporary().like(attended);
        Tensor dqkv = pass.temporary().tensor(x.dtype(), x.size(0), 3 * attended.size(1));
        projection.inputGradient(dy, dattended, stream);
        attention.backwardPacked(dattended, dqkv, pass);
        if (heads.rotary != null && heads.sequences != null) {
            heads.rotary.rotatePackedBack(dqkv, heads.sequences, stream);
        }
        qkv.parameterGradients(dqkv, x, pass);
        if (x.requiresGradient()) {
            qkv.inputGradient(dqkv, dx, stream);
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
