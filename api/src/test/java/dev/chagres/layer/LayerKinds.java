package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** Every class of layers, with the options that change what it runs. */
public final class LayerKinds {
    private static final Initializer ZEROS = Initializer.zeros();

    private LayerKinds() {}

    public static List<LayerKind> all() {
        return Stream.of(products(), mlps(), attention(), transformers(), composites())
                .flatMap(List::stream)
                .toList();
    }

    /** Products, norms and activations. */
    private static List<LayerKind> products() {
        return List.of(
                new LayerKind("linear", Linear.class, (plan, m, s) -> new Linear(EveryLayer.HIDDEN, 48, ZEROS, plan)),
                new LayerKind(
                        "linear without bias",
                        Linear.class,
                        (plan, m, s) -> new Linear(EveryLayer.HIDDEN, 48, Bias.ABSENT, ZEROS, plan)),
                new LayerKind("layer norm", LayerNorm.class, (plan, m, s) -> new LayerNorm(norm(), plan)),
                new LayerKind(
                        "RMS norm",
                        RmsNorm.class,
                        (plan, m, s) -> new RmsNorm(NormConfig.rmsNorm(EveryLayer.HIDDEN), plan)),
                new LayerKind(
                        "norm, linear", LayerNormLinear.class, (p, m, s) -> new LayerNormLinear(norm(), 40, ZEROS, p)),
                new LayerKind(
                        "norm, linear without bias",
                        LayerNormLinear.class,
                        (p, m, s) -> new LayerNormLinear(norm(), 40, Bias.ABSENT, ZEROS, p)),
                new LayerKind(
                        "linear of a norm with two readers",
                        LayerNormLinear.class,
                        (p, m, s) -> new NormOfTwoReaders(new LayerNormLinear(norm(), EveryLayer.HIDDEN, ZEROS, p))),
                new LayerKind(
                        "MLP of a norm with two readers",
                        LayerNormMlp.class,
                        (p, m, s) -> new NormOfTwoReaders(new LayerNormMlp(
                                MlpConfig.gelu(EveryLayer.HIDDEN).withNorm(NormConfig.rmsNorm(EveryLayer.HIDDEN)), p))),
                new LayerKind("gelu", ActivationLayer.class, (plan, m, s) -> new ActivationLayer("f", Activation.GELU)),
                new LayerKind(
                        "exact gelu", ActivationLayer.class, (plan, m, s) -> new ActivationLayer("f", GeluForm.ERF)),
                new LayerKind(
                        "swiglu", ActivationLayer.class, (plan, m, s) -> new ActivationLayer("f", Activation.SWIGLU)),
                new LayerKind(
                        "clamped swiglu",
                        ActivationLayer.class,
                        (plan, m, s) -> new ActivationLayer(
                                "f", ClampedSwiglu.standard().withLimit(1))));
    }

    /** MLPs: with bias and without, and whatever they compute again. */
    private static List<LayerKind> mlps() {
        List<LayerKind> kinds = new ArrayList<>();
        for (Activation activation : List.of(Activation.GELU, Activation.SWIGLU, Activation.CLAMPED_SWIGLU)) {
            MlpConfig config =
                    MlpConfig.gelu(EveryLayer.HIDDEN).withActivation(activation).withBias(Bias.ABSENT);
            kinds.add(new LayerKind(
                    activation + " MLP without bias",
                    LayerNormMlp.class,
                    (plan, m, s) -> new LayerNormMlp(config, plan)));
        }
        for (Activation activation : List.of(Activation.GELU, Activation.RELU, Activation.GEGLU)) {
            for (Recomputation recomputation : Recomputation.values()) {
                MlpConfig config = MlpConfig.gelu(EveryLayer.HIDDEN)
                        .withActivation(activation)
                        .withRecomputation(recomputation);
                kinds.add(new LayerKind(
                        activation + " MLP, recomputing " + recomputation,
                        LayerNormMlp.class,
                        (plan, m, s) -> new LayerNormMlp(config, plan)));
            }
        }
        MlpConfig exact = MlpConfig.gelu(EveryLayer.HIDDEN).withGelu(GeluForm.ERF);
        kinds.add(new LayerKind("exact GELU MLP", LayerNormMlp.class, (plan, m, s) -> new LayerNormMlp(exact, plan)));
        return kinds;
    }

    /** Attention, with norm or without. */
    private static List<LayerKind> attention() {
        return List.of(
                new LayerKind(
                        "attention of a norm with two readers",
                        MultiheadAttention.class,
                        (p, m, s) -> new NormOfTwoReaders(attention(p, m, s))),
                new LayerKind("attention", MultiheadAttention.class, LayerKinds::attention),
                new LayerKind(
                        "attention without bias",
                        MultiheadAttention.class,
                        (plan, m, s) -> new MultiheadAttention(norm(), config().attention(), Bias.ABSENT, ZEROS, plan)),
                new LayerKind("grouped attention", MultiheadAttention.class, LayerKinds::groupedAttention),
                new LayerKind(
                        "attention with RMS norms of heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(QkNorm.of(QkNorm.Kind.RMS_NORM), p, s)),
                new LayerKind(
                        "attention with layer norms of heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(
                                QkNorm.of(QkNorm.Kind.LAYER_NORM).withPlace(QkNorm.Place.BEFORE_ROTATION), p, s)),
                new LayerKind(
                        "attention with unit heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(QkNorm.of(QkNorm.Kind.L2), p, s)),
                new LayerKind(
                        "attention over capped scores with linear biases and sinks",
                        MultiheadAttention.class,
                        LayerKinds::attentionOverChangedScores),
                new LayerKind(
                        "attention with linear biases",
                        MultiheadAttention.class,
                        LayerKinds::attentionWithLinearBiases),
                new LayerKind("cross-attention", CrossAttention.class, LayerKinds::crossAttention),
                new LayerKind("rotated cross-attention", CrossAttention.class, LayerKinds::rotatedCrossAttention),
                new LayerKind(
                        "attention without norm",
                        MultiheadAttention.class,
                        (plan, m, s) -> MultiheadAttention.withoutNorm(
                                EveryLayer.HIDDEN, config().attention(), Bias.PRESENT, ZEROS, plan)));
    }

    /** Whole transformer layers. */
    private static List<LayerKind> transformers() {
        return List.of(
                new LayerKind(
                        "decoder transformer with sinks",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                        .withSoftmaxType(SoftmaxType.LEARNABLE)),
                                plan,
                                m)),
                new LayerKind(
                        "multi-query transformer",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(
                                config().withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                        .withKeyHeads(1)),
                                plan,
                                s)),
                new LayerKind(
                        "transformer", TransformerLayer.class, (plan, m, s) -> transformer(Dropout.none(), plan, s)),
                new LayerKind(
                        "RMS transformer",
                        TransformerLayer.class,
                        (plan, m, s) ->
                                new TransformerLayer(config().withNorm(NormConfig.rmsNorm(EveryLayer.HIDDEN)), plan)),
                new LayerKind(
                        "transformer without bias",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withBias(Bias.ABSENT), plan, s)),
                new LayerKind(
                        "transformer without bias of the projection",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withProjectionBias(Bias.ABSENT), plan, s)),
                new LayerKind(
                        "transformer with zero-centred norms",
                        TransformerLayer.class,
                        (plan, m, s) ->
                                new TransformerLayer(config().withNorm(norm().withGamma(Gamma.ZERO_CENTERED)), plan)),
                new LayerKind(
                        "transformer with dropout",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(Dropout.of(0.3f), plan, s)),
                new LayerKind(
                        "transformer with drop path",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withDropPath(Dropout.of(0.4f)), plan, s)),
                new LayerKind(
                        "decoder transformer", TransformerLayer.class, (plan, m, s) -> decoder(config(), plan, m)),
                new LayerKind(
                        "decoder transformer with dropout",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withHiddenDropout(Dropout.of(0.3f)).withDropPath(Dropout.of(0.4f)), plan, m)),
                new LayerKind(
                        "decoder transformer of norms, without bias",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withResidual(ResidualSource.NORM).withNormPlacement(NormPlacement.OUTPUT),
                                Bias.ABSENT,
                                plan,
                                m)),
                new LayerKind(
                        "decoder transformer that recomputes norms",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withRecomputation(TransformerLayerConfig.Recomputation.NORMS), plan, m)),
                new LayerKind(
                        "transformer that adds to norms",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withResidual(ResidualSource.NORM), plan, s)),
                new LayerKind(
                        "transformer that norms its output",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withNormPlacement(NormPlacement.OUTPUT), plan, s)),
                new LayerKind(
                        "parallel transformer",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withBranchOrder(BranchOrder.PARALLEL), plan, s)),
                new LayerKind(
                        "parallel transformer with drop path",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(
                                config().withBranchOrder(BranchOrder.PARALLEL).withDropPath(Dropout.of(0.4f)),
                                plan,
                                s)));
    }

    /** Layers of layers. */
    private static List<LayerKind> composites() {
        return List.of(
                new LayerKind(
                        "recomputed",
                        Recomputed.class,
                        (plan, m, s) -> new Recomputed(new LayerNormMlp(MlpConfig.gelu(EveryLayer.HIDDEN), plan))),
                new LayerKind("widths", Sequential.class, LayerKinds::widths),
                new LayerKind(
                        "stack",
                        Sequential.class,
                        (plan, m, s) -> new Sequential(
                                "stack",
                                transformer(Dropout.none(), plan.child("0"), s),
                                transformer(Dropout.none(), plan.child("1"), s))));
    }

    private static NormConfig norm() {
        return NormConfig.layerNorm(EveryLayer.HIDDEN);
    }

    private static TransformerLayerConfig config() {
        return TransformerLayerConfig.encoder(EveryLayer.HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    }

    private static TransformerLayer transformer(Dropout dropout, ModelPlan plan, Scope scope) {
        AttentionConfig attention = config().attention().withDropout(dropout);
        return transformer(config().withAttention(attention).withHiddenDropout(dropout), plan, scope);
    }

    private static TransformerLayer decoder(TransformerLayerConfig config, ModelPlan plan, SharedInput memory) {
        return decoder(config, Bias.PRESENT, plan, memory);
    }

    private static TransformerLayer decoder(
            TransformerLayerConfig config, Bias bias, ModelPlan plan, SharedInput memory) {
        return new TransformerLayer(config.withCrossAttention(crossAttention()).withBias(bias), memory, plan);
    }

    private static TransformerLayer transformer(TransformerLayerConfig config, ModelPlan plan, Scope scope) {
        TransformerLayer layer = new TransformerLayer(config, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, config.attention().headDim()));
        return layer;
    }

    private static Layer normedAttention(QkNorm norm, ModelPlan plan, Scope scope) {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.causal())
                .withKeyHeads(2)
                .withQkNorm(norm)
                .deterministic();
        MultiheadAttention layer = new MultiheadAttention(norm(), config, ZEROS, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, 8));
        return layer;
    }

    private static Layer attentionOverChangedScores(ModelPlan plan, SharedInput memory, Scope scope) {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.causal())
                .withKeyHeads(2)
                .withSoftcap(3)
                .withSoftmaxType(SoftmaxType.LEARNABLE);
        MultiheadAttention layer = new MultiheadAttention(norm(), config, ZEROS, plan);
        layer.alibi(Alibi.of(scope, 4));
        return layer;
    }

    /** In 16 bits by cuDNN's kernels. */
    private static Layer attentionWithLinearBiases(ModelPlan plan, SharedInput memory, Scope scope) {
        AttentionConfig config =
                AttentionConfig.of(4, 8, AttentionMask.causal()).withKeyHeads(2).deterministic();
        MultiheadAttention layer = new MultiheadAttention(norm(), config, ZEROS, plan);
        layer.alibi(Alibi.of(scope, 4));
        return layer;
    }

    /** Two key heads for four of the query, without a rotation. */
    private static Layer groupedAttention(ModelPlan plan, SharedInput memory, Scope scope) {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        return new MultiheadAttention(norm(), config, ZEROS, plan);
    }

    private static MultiheadAttention attention(ModelPlan plan, SharedInput memory, Scope scope) {
        MultiheadAttention layer =
                new MultiheadAttention(norm(), AttentionConfig.of(2, 16, AttentionMask.causal()), ZEROS, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, 16));
        return layer;
    }

    private static Layer crossAttention(ModelPlan plan, SharedInput memory, Scope scope) {
        return new CrossAttention(crossAttention(), memory, plan);
    }

    private static Layer rotatedCrossAttention(ModelPlan plan, SharedInput memory, Scope scope) {
        CrossAttentionConfig config = crossAttention();
        CrossAttention layer = new CrossAttention(
                config.withAttention(config.attention().withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM))), memory, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, 8));
        return layer;
    }

    private static CrossAttentionConfig crossAttention() {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        return CrossAttentionConfig.of(EveryLayer.HIDDEN, config).withMemoryColumns(EveryLayer.MEMORY_HIDDEN);
    }

    /** Layers of several widths, one of which halves them. */
    private static Layer widths(ModelPlan plan, SharedInput memory, Scope scope) {
        return new Sequential(
                "widths",
                new Linear(EveryLayer.HIDDEN, 80, ZEROS, plan.child("up")),
                new ActivationLayer("gate", Activation.SWIGLU),
                new LayerNorm(NormConfig.layerNorm(40), plan.child("norm")),
                new Linear(40, EveryLayer.HIDDEN, ZEROS, plan.child("down")));
    }
}
