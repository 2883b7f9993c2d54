package dev.chagres.models.esm;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What all heads of an ESM-2 read: {@code norm(layers(embedding(ids)))}.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Encoder {
    static final Initializer WEIGHTS = Initializer.normal(0.02f);

    private final Esm2Config config;
    private final Embedding embedding;
    /** Token dropout; null in a form without. */
    private final @Nullable MaskedEmbeddings masked;

    private final List<TransformerLayer> blocks;
    private final Sequential layers;
    private final LayerNorm norm;
    /** Behind the layers and their norm, of which sequence-parallel ranks have a part of the tokens each, as of the embedding. */
    private final TokenGather gather;

    /** Declares the parameters in {@code plan}. */
    Esm2Encoder(Esm2Config config, ModelPlan plan) {
        this.config = config;
        int hidden = config.hidden();
        embedding = Embedding.vocabularyParallel(Esm2.VOCABULARY, hidden, WEIGHTS, plan.group("embedding"));
        Esm2Form form = config.form();
        masked = form.masks() == Esm2Form.Masks.DROPPED ? new MaskedEmbeddings(plan) : null;
        AttentionConfig attention = AttentionConfig.of(config.heads(), config.headDim(), AttentionMask.none());
        boolean recomputesNorms = config.recomputation() == Esm2Recomputation.NORMS;
        NormConfig normConfig = norm(config);
        TransformerLayerConfig encoder =
                TransformerLayerConfig.encoder(hidden, attention).withNorm(normConfig);
        TransformerLayerConfig layer = encoder.withMlp(
                        encoder.mlp().withGelu(form.gelu()).withInner(config.inner()))
                .withRecomputation(recomputesNorms ? Recomputation.NORMS : Recomputation.NONE);
        blocks = IntStream.range(0, config.layers())
                .mapToObj(i -> new TransformerLayer(layer, plan.group("layers." + i)))
                .toList();
        boolean recomputesLayers = config.recomputation() == Esm2Recomputation.LAYERS;
        layers = Sequential.of(config.layers(), i -> recomputesLayers ? new Recomputed(blocks.get(i)) : blocks.get(i));
        norm = new LayerNorm(normConfig, plan.group("norm").forTokenParts());
        gather = new TokenGather(plan);
    }

    /** Returns the configuration of all norms. */
    static NormConfig norm(Esm2Config config) {
        return NormConfig.layerNorm(config.hidden()).withEpsilon(config.form().normEpsilon());
    }

    /** Returns the parameters with memory, and gives the layers their rotation in {@code scope}, which is closed if that fails. */
    Parameters allocate(Scope scope, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        try {
            RotaryEmbedding rotary = RotaryEmbedding.of(
                    scope,
                    config.context(),
                    RotaryConfig.of(config.headDim())
                            .withFrequencies(config.form().frequencies()));
            blocks.forEach(block -> block.rotate(rotary));
            return memory.apply(plan);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns the embedding's table. */
    Parameter table() {
        return embedding.weight();
    }

    /** Returns the layers, none of which recomputes. */
    List<TransformerLayer> blocks() {
        return blocks;
    }

    List<Layer> layers() {
        return layers.layers();
    }

    /** Enqueues what comes before the layers. */
    Tensor begin(Tensor ids, Pass pass) {
        Tensor x = embedding.forward(ids, pass);
        return masked == null ? x : masked.scale(x, ids, pass);
    }

    /** Enqueues what comes behind the layers. */
    Tensor end(Tensor x, Pass pass) {
        return gather.forward(norm.forward(x, pass), pass);
    }

    Tensor forward(Tensor ids, Pass pass) {
        return end(layers.forward(begin(ids, pass), pass), pass);
    }

    Tensor endBackward(Tensor dy, Pass pass) {
        return norm.backward(gather.backward(dy, pass), pass);
    }

    void beginBackward(Tensor dy, Pass pass) {
        embedding.backward(masked == null ? dy : masked.backward(dy, pass), pass);
    }

    /** Enqueues the gradients of the layers and what comes before, for the gradient that {@link #endBackward} gave. */
    void backward(Tensor gradient, Pass pass) {
        layers.backward(gradient, gradient, pass);
        beginBackward(gradient, pass);
    }
}
