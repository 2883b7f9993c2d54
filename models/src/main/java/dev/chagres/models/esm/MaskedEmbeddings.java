package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.nccl.Reduction;
import dev.chagres.ops.TokenDropout;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Token dropout: {@code y[t] = 0} where {@code ids[t]} is the mask, else {@code x[t] 0.88 / (1 - m / n)}, with n tokens in t's sequence, m of
 * them masked.
 *
 * <p>Sequence-parallel ranks each have a part of x, and the identifiers of all tokens. Context-parallel ranks have a part of both, across the
 * beginnings of sequences: they exchange the identifiers, 4 bytes a token, for each counts the masks of whole sequences.
 *
 * <p>Threading: the device's thread.
 */
final class MaskedEmbeddings extends Layer implements TransformerBody.EmbeddingStep {
    /** Share of tokens that training leaves unmasked: 1 - 0.15 times 0.8. */
    private static final float KEPT = 0.88f;

    private static final class Kept extends SavedContext {
        private final SavedTensor factors = new SavedTensor("the factors of the tokens");
    }

    private final TensorParallel ranks;
    private final ContextParallel context;
    private final ContextPool<Kept> saved = new ContextPool<>(this, Kept::new);
    /** The identifiers of the running forward call. */
    private @Nullable Tensor ids;

    MaskedEmbeddings(ModelPlan plan) {
        super("tokenDropout");
        ranks = plan.tensorParallel();
        context = plan.contextParallel();
    }

    @Override
    public Tensor scale(Tensor x, Tensor allIds, Pass pass) {
        ids = allIds;
        try {
            return forward(x, pass);
        } finally {
            ids = null;
        }
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Sequences sequences = pass.sequences().keys(); // of all ranks, also where each attends with its own tokens
        Tensor all = all(Objects.requireNonNull(ids, "ids"), sequences, pass);
        Tensor factors = pass.kept().tensor(DType.FLOAT32, all.size(0));
        CuSeqlens places = sequences.cuSeqlensPadded();
        TokenDropout.factors(
                all,
                sequences.cuSeqlens().offsets(),
                places == null ? null : places.offsets(),
                sequences.format(),
                EsmVocabulary.MASK,
                KEPT,
                factors,
                pass.stream());
        TokenDropout.scale(x, y, factors, first(x, factors), pass.stream());
        Kept kept = saved.push(pass);
        if (kept != null) {
            kept.factors.set(factors);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor factors = saved.pop(pass).factors.get();
        TokenDropout.scale(dy, dx, factors, first(dy, factors), pass.stream());
    }

    /** Returns the identifiers of the tokens of all ranks: the sum of those of each in their places. */
    private Tensor all(Tensor own, Sequences sequences, Pass pass) {
        if (!context.isSplit()) {
            sequences.checkTokens("ids", own, own.size(0));
            return own;
        }
        long tokens = sequences.tokens();
        context.checkPart("ids", own.size(0), tokens);
        Tensor all = pass.temporary().tensor(DType.INT32, tokens);
        all.zero(pass.stream());
        pass.temporary()
                .view(all, context.begin(tokens, context.rank()), own.size(0))
                .copyFrom(pass.stream(), own);
        context.group().allReduce(all, all, Reduction.SUM, pass.stream());
        return all;
    }

    /** Returns the number of this rank's first row among all tokens, of which each has a factor. */
    private long first(Tensor rows, Tensor factors) {
        long before = context.isSplit() ? context.begin(factors.size(0), context.rank()) : 0;
        return before + (ranks.isSequenceParallel() ? ranks.rank() * rows.size(0) : 0);
    }

    @Override
    public boolean worksInPlace() {
        return true;
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        return name() + ": ops_token_dropout_factors and ops_scale_sequences_add"
                + (context.isSplit() ? ", of identifiers that " + context.size() + " ranks have summed" : "");
    }
}
