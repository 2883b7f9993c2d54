package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** A transformer layer that recomputes the outputs of its norms, and how many of these it does not save. */
record NormRecomputationCase(String name, TransformerLayerConfig config, int norms) {
    static final int HIDDEN = EveryLayer.HIDDEN;
    static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    static final TransformerLayerConfig DECODER = ENCODER.withCrossAttention(CrossAttentionConfig.of(
                    HIDDEN, AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2))
            .withMemoryColumns(EveryLayer.MEMORY_HIDDEN));

    LayerKind kind(Recomputation recomputation) {
        return new LayerKind(name, TransformerLayer.class, (plan, memory, scope) -> {
            TransformerLayerConfig chosen = config.withRecomputation(recomputation);
            TransformerLayer layer = chosen.crossAttention() == null
                    ? new TransformerLayer(chosen, plan)
                    : new TransformerLayer(chosen, memory, plan);
            layer.rotate(RotaryEmbedding.of(scope, 16, chosen.attention().headDim()));
            return layer;
        });
    }

    @Override
    public String toString() {
        return name;
    }

    static List<NormRecomputationCase> all() {
        List<NormRecomputationCase> cases = new ArrayList<>(List.of(
                new NormRecomputationCase("encoder", ENCODER, 2),
                new NormRecomputationCase("RMS norms", ENCODER.withNorm(NormConfig.rmsNorm(HIDDEN)), 2),
                new NormRecomputationCase(
                        "grouped heads with norms",
                        ENCODER.withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                .withKeyHeads(2)
                                .withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM))),
                        2),
                new NormRecomputationCase("dropout", ENCODER.withHiddenDropout(Dropout.of(0.3f)), 2),
                new NormRecomputationCase("drop path", ENCODER.withDropPath(Dropout.of(0.4f)), 2),
                new NormRecomputationCase("residual of norms", ENCODER.withResidual(ResidualSource.NORM), 2),
                new NormRecomputationCase("norm of the output", ENCODER.withNormPlacement(NormPlacement.OUTPUT), 1),
                new NormRecomputationCase("parallel branches", ENCODER.withBranchOrder(BranchOrder.PARALLEL), 2),
                new NormRecomputationCase("decoder", DECODER, 3),
                new NormRecomputationCase(
                        "decoder with normed heads and dropout",
                        DECODER.withCrossAttention(CrossAttentionConfig.of(
                                                HIDDEN,
                                                AttentionConfig.of(4, 8, AttentionMask.none())
                                                        .withQkNorm(QkNorm.of(QkNorm.Kind.LAYER_NORM)))
                                        .withMemoryColumns(EveryLayer.MEMORY_HIDDEN))
                                .withHiddenDropout(Dropout.of(0.3f)),
                        3)));
        for (MlpConfig.Recomputation inside : MlpConfig.Recomputation.values()) {
            for (Activation activation : List.of(Activation.GELU, Activation.SWIGLU)) {
                cases.add(new NormRecomputationCase(
                        activation + ", recomputing " + inside,
                        ENCODER.withMlp(MlpConfig.gelu(HIDDEN)
                                .withActivation(activation)
                                .withRecomputation(inside)),
                        2));
            }
        }
        return cases;
    }

    /** Trains a model of the layer, with the usual memory. */
    <R> R run(
            Recomputation recomputation,
            DType dtype,
            @Nullable Recipe recipe,
            Consumer<ModelPlan> change,
            EveryLayerCase.Run<R> run) {
        return run(recomputation, dtype, recipe, EveryLayerCase.PLAIN, MemoryReuse.USUAL, change, run);
    }

    /** Trains a model of the layer. */
    <R> R run(
            Recomputation recomputation,
            DType dtype,
            @Nullable Recipe recipe,
            UnaryOperator<Layer> wrapper,
            MemoryReuse reuse,
            Consumer<ModelPlan> change,
            EveryLayerCase.Run<R> run) {
        return new EveryLayerCase(kind(recomputation), dtype, recipe, WeightStorage.MODEL_TYPE)
                .run(wrapper, reuse, change, true, run);
    }

    /** Freezes the parameters with such names. */
    static void freeze(ModelPlan plan, String pattern) {
        plan.parameters().stream()
                .filter(parameter -> parameter.name().matches(pattern))
                .forEach(Parameter::freeze);
    }

    static Tensor drawn(Scope scope, long rows, long columns, long seed) {
        return drawn(scope, DType.BFLOAT16, rows, columns, seed);
    }

    static Tensor drawn(Scope scope, DType dtype, long rows, long columns, long seed) {
        float[] values = new float[(int) (rows * columns)];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) CounterRandom.normal(seed, i);
        }
        Tensor tensor = scope.tensor(dtype, rows, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }
}
