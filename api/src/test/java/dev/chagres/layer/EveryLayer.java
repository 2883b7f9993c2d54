package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.model.CounterRandom;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.WeightStorage;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** One layer of every class, and a model of it alone: the same weights and inputs each time. */
final class EveryLayer implements AutoCloseable {
    static final int HIDDEN = 32;
    private static final int[] LENGTHS = {7, 1, 0, 11};
    static final int TOKENS = 19;
    private static final int MEMORY_TOKENS = 9;
    private static final int MEMORY_HIDDEN = 24;
    private static final Initializer ZEROS = Initializer.zeros();

    /** Makes a layer. */
    private interface Maker {
        Layer make(ModelPlan plan, FanOut memory, Scope scope);
    }

    /** A kind of layer, and how one is made. */
    record Kind(String name, Class<? extends Layer> type, Maker maker) {
        @Override
        public String toString() {
            return name;
        }

        /** Returns whether a recipe changes what it computes: products whose sizes are multiples of 16. */
        boolean multiplies() {
            return attends() || name.contains("MLP") || name.startsWith("linear");
        }

        /** Returns whether it wants sequences, with tokens in them. */
        boolean attends() {
            return name.contains("attention") || name.contains("transformer") || name.contains("stack");
        }
    }

    /** What a step gives: output, gradient of the input, of the memory, of the parameters. */
    record Step(float[] y, float[] dx, float[] dmemory, List<float[]> gradients) {}

    final Device device;
    final Parameters parameters;
    final Layer layer;
    final FanOut memory = new FanOut("memory");
    final Scope inputs;
    final Sequences sequences;
    final Tensor x;
    final Tensor memoryInput;
    private final DType dtype;
    private final @Nullable Quantizers quantizers;

    EveryLayer(
            Device device,
            Kind kind,
            DType dtype,
            @Nullable Recipe recipe,
            WeightStorage storage,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> change) {
        this.device = device;
        this.dtype = dtype;
        inputs = device.openScope();
        ModelPlan plan = new ModelPlan();
        layer = wrapper.apply(kind.maker.make(plan.group("layer"), memory, inputs));
        plan.declare("unused", ZEROS, 1);
        change.accept(plan);
        parameters = Parameters.allocate(device, plan, dtype, 1, storage);
        for (Parameter parameter : parameters.all()) {
            boolean matrix = parameter.shape().rank() == 2;
            float size = matrix ? (float) (1 / Math.sqrt(parameter.shape().size(1))) : 0.2f;
            float middle = !matrix && parameter.name().endsWith("weight") ? 1 : 0;
            fill(parameter.weight(), CounterRandom.key(2, parameter.name()), middle, size);
        }
        quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
        sequences = Sequences.packed(inputs, LENGTHS).withKeys(Sequences.packed(inputs, 2, 3, 0, 4));
        x = inputs.tensor(dtype, TOKENS, HIDDEN);
        fill(x, 3, 0, 1);
        memoryInput = inputs.tensor(dtype, MEMORY_TOKENS, MEMORY_HIDDEN);
        fill(memoryInput, 4, 0, 1);
    }

    static List<Kind> kinds() {
        List<Kind> kinds = new ArrayList<>(List.of(
                new Kind("linear", Linear.class, (plan, m, s) -> new Linear(HIDDEN, 48, ZEROS, plan)),
                new Kind(
                        "linear without bias",
                        Linear.class,
                        (plan, m, s) -> new Linear(HIDDEN, 48, Bias.ABSENT, ZEROS, plan)),
                new Kind("layer norm", LayerNorm.class, (plan, m, s) -> new LayerNorm(norm(), plan)),
                new Kind("RMS norm", RmsNorm.class, (plan, m, s) -> new RmsNorm(NormConfig.rmsNorm(HIDDEN), plan)),
                new Kind("norm, linear", LayerNormLinear.class, (p, m, s) -> new LayerNormLinear(norm(), 40, ZEROS, p)),
                new Kind(
                        "norm, linear without bias",
                        LayerNormLinear.class,
                        (p, m, s) -> new LayerNormLinear(norm(), 40, Bias.ABSENT, ZEROS, p)),
                new Kind(
                        "linear of a norm with two readers",
                        LayerNormLinear.class,
                        (p, m, s) -> new NormOfTwoReaders(new LayerNormLinear(norm(), HIDDEN, ZEROS, p))),
                new Kind(
                        "MLP of a norm with two readers",
                        LayerNormMlp.class,
                        (p, m, s) -> new NormOfTwoReaders(
                                new LayerNormMlp(MlpConfig.gelu(HIDDEN).withNorm(NormConfig.rmsNorm(HIDDEN)), p))),
                new Kind(
                        "attention of a norm with two readers",
                        MultiheadAttention.class,
                        (p, m, s) -> new NormOfTwoReaders(attention(p, m, s))),
                new Kind("gelu", ActivationLayer.class, (plan, m, s) -> new ActivationLayer("f", Activation.GELU)),
                new Kind("swiglu", ActivationLayer.class, (plan, m, s) -> new ActivationLayer("f", Activation.SWIGLU)),
                new Kind(
                        "clamped swiglu",
                        ActivationLayer.class,
                        (plan, m, s) -> new ActivationLayer(
                                "f", ClampedSwiglu.standard().withLimit(1))),
                new Kind("attention", MultiheadAttention.class, EveryLayer::attention),
                new Kind(
                        "attention without bias",
                        MultiheadAttention.class,
                        (plan, m, s) -> new MultiheadAttention(norm(), config().attention(), Bias.ABSENT, ZEROS, plan)),
                new Kind("grouped attention", MultiheadAttention.class, EveryLayer::groupedAttention),
                new Kind(
                        "attention with RMS norms of heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(QkNorm.of(QkNorm.Kind.RMS_NORM), p, s)),
                new Kind(
                        "attention with layer norms of heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(
                                QkNorm.of(QkNorm.Kind.LAYER_NORM).withPlace(QkNorm.Place.BEFORE_ROTATION), p, s)),
                new Kind(
                        "attention with unit heads",
                        MultiheadAttention.class,
                        (p, m, s) -> normedAttention(QkNorm.of(QkNorm.Kind.L2), p, s)),
                new Kind(
                        "attention over capped scores with linear biases and sinks",
                        MultiheadAttention.class,
                        EveryLayer::attentionOverChangedScores),
                new Kind(
                        "decoder transformer with sinks",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                        .withSoftmaxType(SoftmaxType.LEARNABLE)),
                                plan,
                                m)),
                new Kind(
                        "multi-query transformer",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(
                                config().withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                        .withKeyHeads(1)),
                                plan,
                                s)),
                new Kind("cross-attention", CrossAttention.class, EveryLayer::crossAttention),
                new Kind("rotated cross-attention", CrossAttention.class, EveryLayer::rotatedCrossAttention),
                new Kind("transformer", TransformerLayer.class, (plan, m, s) -> transformer(Dropout.none(), plan, s)),
                new Kind(
                        "RMS transformer",
                        TransformerLayer.class,
                        (plan, m, s) -> new TransformerLayer(config().withNorm(NormConfig.rmsNorm(HIDDEN)), plan)),
                new Kind(
                        "transformer without bias",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withBias(Bias.ABSENT), plan, s)),
                new Kind(
                        "transformer with zero-centred norms",
                        TransformerLayer.class,
                        (plan, m, s) ->
                                new TransformerLayer(config().withNorm(norm().withGamma(Gamma.ZERO_CENTERED)), plan)),
                new Kind(
                        "transformer with dropout",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(Dropout.of(0.3f), plan, s)),
                new Kind(
                        "transformer with drop path",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withDropPath(Dropout.of(0.4f)), plan, s)),
                new Kind("decoder transformer", TransformerLayer.class, (plan, m, s) -> decoder(config(), plan, m)),
                new Kind(
                        "decoder transformer with dropout",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withHiddenDropout(Dropout.of(0.3f)).withDropPath(Dropout.of(0.4f)), plan, m)),
                new Kind(
                        "decoder transformer of norms, without bias",
                        TransformerLayer.class,
                        (plan, m, s) -> decoder(
                                config().withResidual(ResidualSource.NORM).withNormPlacement(NormPlacement.OUTPUT),
                                Bias.ABSENT,
                                plan,
                                m)),
                new Kind(
                        "transformer that adds to norms",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withResidual(ResidualSource.NORM), plan, s)),
                new Kind(
                        "transformer that norms its output",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withNormPlacement(NormPlacement.OUTPUT), plan, s)),
                new Kind(
                        "parallel transformer",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(config().withBranchOrder(BranchOrder.PARALLEL), plan, s)),
                new Kind(
                        "parallel transformer with drop path",
                        TransformerLayer.class,
                        (plan, m, s) -> transformer(
                                config().withBranchOrder(BranchOrder.PARALLEL).withDropPath(Dropout.of(0.4f)),
                                plan,
                                s)),
                new Kind(
                        "attention without norm",
                        MultiheadAttention.class,
                        (plan, m, s) -> MultiheadAttention.withoutNorm(
                                HIDDEN, config().attention(), Bias.PRESENT, ZEROS, plan)),
                new Kind(
                        "recomputed",
                        Recomputed.class,
                        (plan, m, s) -> new Recomputed(new LayerNormMlp(MlpConfig.gelu(HIDDEN), plan))),
                new Kind("widths", Sequential.class, EveryLayer::widths),
                new Kind(
                        "stack",
                        Sequential.class,
                        (plan, m, s) -> new Sequential(
                                "stack",
                                transformer(Dropout.none(), plan.child("0"), s),
                                transformer(Dropout.none(), plan.child("1"), s)))));
        for (Activation activation : List.of(Activation.GELU, Activation.SWIGLU, Activation.CLAMPED_SWIGLU)) {
            MlpConfig config = MlpConfig.gelu(HIDDEN).withActivation(activation).withBias(Bias.ABSENT);
            kinds.add(new Kind(
                    activation + " MLP without bias",
                    LayerNormMlp.class,
                    (plan, m, s) -> new LayerNormMlp(config, plan)));
        }
        for (Activation activation : List.of(Activation.GELU, Activation.RELU, Activation.GEGLU)) {
            for (Recomputation recomputation : Recomputation.values()) {
                MlpConfig config =
                        MlpConfig.gelu(HIDDEN).withActivation(activation).withRecomputation(recomputation);
                kinds.add(new Kind(
                        activation + " MLP, recomputing " + recomputation,
                        LayerNormMlp.class,
                        (plan, m, s) -> new LayerNormMlp(config, plan)));
            }
        }
        return kinds;
    }

    private static NormConfig norm() {
        return NormConfig.layerNorm(HIDDEN);
    }

    private static TransformerLayerConfig config() {
        return TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    }

    private static TransformerLayer transformer(Dropout dropout, ModelPlan plan, Scope scope) {
        AttentionConfig attention = config().attention().withDropout(dropout);
        return transformer(config().withAttention(attention).withHiddenDropout(dropout), plan, scope);
    }

    private static TransformerLayer decoder(TransformerLayerConfig config, ModelPlan plan, FanOut memory) {
        return decoder(config, Bias.PRESENT, plan, memory);
    }

    private static TransformerLayer decoder(TransformerLayerConfig config, Bias bias, ModelPlan plan, FanOut memory) {
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

    private static Layer attentionOverChangedScores(ModelPlan plan, FanOut memory, Scope scope) {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.causal())
                .withKeyHeads(2)
                .withSoftcap(3)
                .withSoftmaxType(SoftmaxType.LEARNABLE);
        MultiheadAttention layer = new MultiheadAttention(norm(), config, ZEROS, plan);
        layer.alibi(Alibi.of(scope, 4));
        return layer;
    }

    /** Two key heads for four of the query, without a rotation. */
    private static Layer groupedAttention(ModelPlan plan, FanOut memory, Scope scope) {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        return new MultiheadAttention(norm(), config, ZEROS, plan);
    }

    private static MultiheadAttention attention(ModelPlan plan, FanOut memory, Scope scope) {
        MultiheadAttention layer =
                new MultiheadAttention(norm(), AttentionConfig.of(2, 16, AttentionMask.causal()), ZEROS, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, 16));
        return layer;
    }

    private static Layer crossAttention(ModelPlan plan, FanOut memory, Scope scope) {
        return new CrossAttention(crossAttention(), memory, plan);
    }

    private static Layer rotatedCrossAttention(ModelPlan plan, FanOut memory, Scope scope) {
        CrossAttentionConfig config = crossAttention();
        CrossAttention layer = new CrossAttention(
                config.withAttention(config.attention().withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM))), memory, plan);
        layer.rotate(RotaryEmbedding.of(scope, 16, 8));
        return layer;
    }

    private static CrossAttentionConfig crossAttention() {
        AttentionConfig config = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        return CrossAttentionConfig.of(HIDDEN, config).withMemoryColumns(MEMORY_HIDDEN);
    }

    /** Layers of several widths, one of which halves them. */
    private static Layer widths(ModelPlan plan, FanOut memory, Scope scope) {
        return new Sequential(
                "widths",
                new Linear(HIDDEN, 80, ZEROS, plan.child("up")),
                new ActivationLayer("gate", Activation.SWIGLU),
                new LayerNorm(NormConfig.layerNorm(40), plan.child("norm")),
                new Linear(40, HIDDEN, ZEROS, plan.child("down")));
    }

    private void fill(Tensor tensor, long key, float middle, float size) {
        float[] values = new float[(int) tensor.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (middle + size * CounterRandom.normal(key, i));
        }
        tensor.set(device.stream(), values);
    }

    /** Begins a micro-batch over the usual sequences, in which draws repeat. */
    Pass begin(Pass pass) {
        pass.begin(sequences);
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
        pass.seed(9, 8, 7);
        memory.forward(memoryInput, pass);
        return pass;
    }

    /** Forward, and backward where the pass saves, over the usual input. */
    Step step(Pass pass) {
        Tensor y = layer.forward(x, begin(pass));
        float[] output = read(y);
        if (!pass.isSaving()) {
            return new Step(output, new float[0], new float[0], List.of());
        }
        Tensor dy = pass.scope().like(y);
        fill(dy, 5, 0, 1);
        Tensor dx = layer.backward(dy, pass);
        Tensor dmemory = memory.backward(pass);
        return new Step(output, read(dx), read(dmemory), gradients());
    }

    List<float[]> gradients() {
        parameters.completeGradients();
        return parameters.all().stream()
                .map(parameter -> parameter.isFrozen() ? new float[0] : read(parameter.gradient()))
                .toList();
    }

    float[] read(Tensor tensor) {
        return tensor.toFloats(device.stream());
    }

    Tensor gradient(Tensor y) {
        Tensor dy = inputs.tensor(dtype, y.size(0), y.size(1));
        fill(dy, 5, 0, 1);
        return dy;
    }

    @Override
    public void close() {
        inputs.close();
        parameters.close();
    }
}
