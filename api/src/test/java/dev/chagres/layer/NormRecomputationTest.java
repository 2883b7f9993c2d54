package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.WeightStorage;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Layers that compute the outputs of their norms again: the same bits as those that keep them, in less memory. */
@Tag("L0")
@Tag("L1")
class NormRecomputationTest {
    private static final int HIDDEN = EveryLayer.HIDDEN;
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    private static final TransformerLayerConfig DECODER = ENCODER.withCrossAttention(CrossAttentionConfig.of(
                    HIDDEN, AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2))
            .withMemoryColumns(EveryLayer.MEMORY_HIDDEN));
    private static final int REPEATED_STEPS = 2;

    /** A layer, and how many outputs of norms it does not keep. */
    record Case(String name, TransformerLayerConfig config, int norms) {
        private LayerKind kind(Recomputation recomputation) {
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
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>(List.of(
                new Case("encoder", ENCODER, 2),
                new Case("RMS norms", ENCODER.withNorm(NormConfig.rmsNorm(HIDDEN)), 2),
                new Case(
                        "grouped heads with norms",
                        ENCODER.withAttention(AttentionConfig.of(4, 8, AttentionMask.causal())
                                .withKeyHeads(2)
                                .withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM))),
                        2),
                new Case("dropout", ENCODER.withHiddenDropout(Dropout.of(0.3f)), 2),
                new Case("drop path", ENCODER.withDropPath(Dropout.of(0.4f)), 2),
                new Case("residual of norms", ENCODER.withResidual(ResidualSource.NORM), 2),
                new Case("norm of the output", ENCODER.withNormPlacement(NormPlacement.OUTPUT), 1),
                new Case("parallel branches", ENCODER.withBranchOrder(BranchOrder.PARALLEL), 2),
                new Case("decoder", DECODER, 3),
                new Case(
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
                cases.add(new Case(
                        activation + ", recomputing " + inside,
                        ENCODER.withMlp(MlpConfig.gelu(HIDDEN)
                                .withActivation(activation)
                                .withRecomputation(inside)),
                        2));
            }
        }
        return cases;
    }

    private static <R> R run(
            Case c,
            Recomputation recomputation,
            DType dtype,
            @Nullable Recipe recipe,
            UnaryOperator<Layer> wrapper,
            MemoryReuse reuse,
            Consumer<ModelPlan> change,
            EveryLayerCase.Run<R> run) {
        return new EveryLayerCase(c.kind(recomputation), dtype, recipe, WeightStorage.MODEL_TYPE)
                .run(wrapper, reuse, change, true, run);
    }

    /** Two steps of one pass: the second one's memory is that of the first. */
    private static EveryLayer.Step steps(EveryLayer model, Pass pass) {
        for (int i = 1; i < REPEATED_STEPS; i++) {
            model.step(pass);
            model.parameters.nextStep();
        }
        return model.step(pass);
    }

    private static void assertSameBits(
            Case c, DType dtype, @Nullable Recipe recipe, UnaryOperator<Layer> wrapper, Consumer<ModelPlan> change) {
        EveryLayer.Step expected = run(
                c,
                Recomputation.NONE,
                dtype,
                recipe,
                EveryLayerCase.PLAIN,
                MemoryReuse.USUAL,
                change,
                NormRecomputationTest::steps);
        for (MemoryReuse reuse : MemoryReuse.values()) {
            EveryLayer.Step actual =
                    run(c, Recomputation.NORMS, dtype, recipe, wrapper, reuse, change, NormRecomputationTest::steps);
            EveryLayerCase.assertSame(expected, actual);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void givesTheSameBits(Case c) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            assertSameBits(c, dtype, null, EveryLayerCase.PLAIN, EveryLayerCase.ALL);
        }
    }
}
