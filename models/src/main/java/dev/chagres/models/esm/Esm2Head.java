package dev.chagres.models.esm;

import dev.chagres.Tensor;
import dev.chagres.batch.TokenScores;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerHead;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * The masked-language-model head: {@code loss = crossEntropy(decoder(norm(gelu(dense(x)))), labels)}, with the embedding's table as the
 * decoder's weight.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Head extends Layer implements TransformerHead {
    private final Linear dense;
    private final ActivationLayer gelu;
    private final LayerNorm norm;
    private final Linear decoder;
    private final CrossEntropy crossEntropy;
    private final TensorParallel ranks;
    /** The logits of the latest loss. */
    private @Nullable Tensor scored;

    Esm2Head(Esm2Config config, Parameter table, ModelPlan plan) {
        ModelPlan group = plan.group("head");
        super(group.name());
        long hidden = config.hidden();
        dense = new Linear(hidden, hidden, TransformerBody.WEIGHTS, group.child("dense"));
        gelu = new ActivationLayer(group.name() + ".gelu", config.form().headGelu());
        norm = new LayerNorm(config.norm(), group.child("norm"));
        decoder = Linear.tied(table, group.child("decoder"));
        crossEntropy = CrossEntropy.vocabularyParallel(EsmVocabulary.SIZE, EsmVocabulary.PADDED_SIZE, plan);
        ranks = plan.tensorParallel();
    }

    @Override
    public Tensor loss(Tensor hidden, Tensor labels, Pass pass) {
        Tensor logits = forward(hidden, pass);
        scored = logits;
        return crossEntropy.forward(logits, labels, pass);
    }

    @Override
    public Tensor backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        return backward(crossEntropy.backward(factor, lossScale, pass), pass);
    }

    /** {@inheritDoc} Columns from {@link EsmVocabulary#SIZE} on belong to no token. */
    @Override
    public @Nullable TokenScores scores() {
        Tensor logits = scored;
        return logits == null
                ? null
                : new TokenScores(logits, ranks.begin(EsmVocabulary.PADDED_SIZE, ranks.rank()), EsmVocabulary.SIZE);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        decoder.forward(norm.forward(gelu.forward(dense.forward(x, pass), pass), pass), y, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        dense.backward(gelu.backward(norm.backward(decoder.backward(dy, pass), pass), pass), dx, pass);
    }

    @Override
    public long outputColumns(long inputColumns) {
        return decoder.outputColumns(inputColumns);
    }

    @Override
    public boolean requiresGradient() {
        return anyRequiresGradient(dense, norm) || decoder.requiresGradient();
    }
}
