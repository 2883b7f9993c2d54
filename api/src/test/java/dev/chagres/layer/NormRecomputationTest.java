package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.model.CounterRandom;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.TensorParallel;
import dev.chagres.model.WeightStorage;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.Ranks;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Layers that recompute the outputs of their norms: the same bits as layers that save them, in less memory. */
@Tag("L0")
@Tag("L1")
class NormRecomputationTest {
    private static final int HIDDEN = EveryLayer.HIDDEN;
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
    private static final TransformerLayerConfig DECODER = ENCODER.withCrossAttention(CrossAttentionConfig.of(
                    HIDDEN, AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2))
            .withMemoryColumns(EveryLayer.MEMORY_HIDDEN));
    private static final int TOKENS_OF_RANKS = 32;

    /** A layer, and how many outputs of norms it does not save. */
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
        model.step(pass);
        model.parameters.nextStep();
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

    @ParameterizedTest
    @MethodSource("cases")
    void recomputedLayersGiveTheSameBits(Case c) {
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS.subList(1, 3)) {
            assertSameBits(c, DType.BFLOAT16, null, wrapper, EveryLayerCase.ALL);
        }
    }

    private static final List<Recipe> RECIPES = List.of(
            DelayedScaling.standard(),
            Float8CurrentScaling.standard(),
            Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION),
            Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED),
            Float8BlockScaling.standard(),
            Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION));

    @ParameterizedTest
    @MethodSource("cases")
    void recipesGiveTheSameBits(Case c) {
        for (Recipe recipe : RECIPES) {
            assertSameBits(c, DType.BFLOAT16, recipe, EveryLayerCase.PLAIN, EveryLayerCase.ALL);
        }
    }

    private static void freeze(ModelPlan plan, String pattern) {
        plan.parameters().stream()
                .filter(parameter -> parameter.name().matches(pattern))
                .forEach(Parameter::freeze);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void frozenParametersGiveTheSameBits(Case c) {
        for (String pattern : List.of(".*norm.*", ".*(linear|query|fc1)\\.weight", ".*attention.*", ".*mlp.*", ".*")) {
            assertSameBits(c, DType.BFLOAT16, null, EveryLayerCase.PLAIN, plan -> freeze(plan, pattern));
        }
    }

    /** Returns what a forward call keeps. */
    private static long kept(Case c, Recomputation recomputation, DType dtype, @Nullable Recipe recipe) {
        return run(
                c,
                recomputation,
                dtype,
                recipe,
                EveryLayerCase.PLAIN,
                MemoryReuse.USUAL,
                EveryLayerCase.ALL,
                (model, pass) -> {
                    model.begin(pass);
                    long before = pass.scope().usedBytes();
                    Tensor y = model.layer.forward(model.x, pass);
                    long bytes = pass.scope().usedBytes() - before;
                    model.layer.backward(model.gradient(y), pass);
                    return bytes;
                });
    }

    private static long outputBytes(DType dtype) {
        return ((long) EveryLayer.TOKENS * HIDDEN * dtype.byteSize() + 255) / 256 * 256;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void keepsNoOutputOfANorm(Case c) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            assertEquals(
                    kept(c, Recomputation.NONE, dtype, null) - c.norms * outputBytes(dtype),
                    kept(c, Recomputation.NORMS, dtype, null));
        }
    }

    /** Copies in eight bits are kept as before; whole outputs are not. */
    @Test
    void keepsTheSameCopiesInEightBits() {
        Case encoder = cases().getFirst();
        Recipe copied = Float8CurrentScaling.standard();
        DType type = DType.BFLOAT16;
        assertEquals(kept(encoder, Recomputation.NONE, type, copied), kept(encoder, Recomputation.NORMS, type, copied));
        Recipe whole = Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION);
        assertEquals(
                kept(encoder, Recomputation.NONE, type, whole) - 2 * outputBytes(type),
                kept(encoder, Recomputation.NORMS, type, whole));
    }

    /** Forward of the second pass comes before backward of the first. */
    @ParameterizedTest
    @MethodSource("cases")
    void twoPassesAtOnceGiveTheSameBits(Case c) {
        EveryLayerCase.Run<EveryLayer.Step> run = (model, first) -> {
            try (Pass second = Pass.training(model.device)) {
                Tensor y = model.layer.forward(model.x, model.begin(first));
                Tensor again = model.layer.forward(model.x, model.begin(second));
                Tensor dx = model.layer.backward(model.gradient(y), first);
                Tensor dmemory = model.memory.backward(first);
                Tensor other = model.layer.backward(model.gradient(again), second);
                model.memory.backward(second);
                assertArrayEquals(model.read(dx), model.read(other));
                return new EveryLayer.Step(model.read(y), model.read(dx), model.read(dmemory), model.gradients());
            }
        };
        List<EveryLayer.Step> steps = new ArrayList<>();
        for (Recomputation recomputation : Recomputation.values()) {
            steps.add(run(
                    c,
                    recomputation,
                    DType.BFLOAT16,
                    null,
                    EveryLayerCase.PLAIN,
                    MemoryReuse.USUAL,
                    EveryLayerCase.ALL,
                    run));
        }
        EveryLayerCase.assertSame(steps.getFirst(), steps.getLast());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aCapturedStepGivesTheSameBits(Case c) {
        List<float[]> expected = captured(c, Recomputation.NONE);
        List<float[]> actual = captured(c, Recomputation.NORMS);
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "gradient " + i);
        }
    }

    /** Returns the gradients of a second launch. */
    private static List<float[]> captured(Case c, Recomputation recomputation) {
        return run(
                c,
                recomputation,
                DType.BFLOAT16,
                null,
                EveryLayerCase.PLAIN,
                MemoryReuse.POISONED,
                EveryLayerCase.ALL,
                (model, pass) -> {
                    Tensor dy = model.gradient(model.x);
                    Runnable step = () -> {
                        pass.begin(model.sequences);
                        model.memory.forward(model.memoryInput, pass);
                        model.layer.forward(model.x, pass);
                        model.layer.backward(dy, pass);
                        model.memory.backward(pass);
                    };
                    step.run(); // A capture takes no memory.
                    model.parameters.nextStep();
                    pass.begin();
                    try (Graph graph = model.device.stream().capture(step)) {
                        graph.launch();
                        model.parameters.nextStep();
                        graph.launch();
                        return model.gradients();
                    }
                });
    }

    /** Ranks that have a part of the tokens each gather what they recompute. */
    @ParameterizedTest
    @MethodSource("cases")
    void ranksGiveTheSameBits(Case c) {
        DevicesNeeded.assume(2);
        for (boolean byTokens : new boolean[] {false, true}) {
            for (Recipe recipe : Arrays.asList(null, Float8BlockScaling.standard())) {
                List<List<float[]>> expected = ranked(c, Recomputation.NONE, byTokens, recipe);
                List<List<float[]>> actual = ranked(c, Recomputation.NORMS, byTokens, recipe);
                for (int rank = 0; rank < expected.size(); rank++) {
                    for (int i = 0; i < expected.get(rank).size(); i++) {
                        assertArrayEquals(
                                expected.get(rank).get(i), actual.get(rank).get(i), "result " + i);
                    }
                }
            }
        }
    }

    /** Returns output and gradients of each of two tensor-parallel ranks; {@code byTokens}: sequence-parallel ones. */
    private static List<List<float[]>> ranked(
            Case c, Recomputation recomputation, boolean byTokens, @Nullable Recipe recipe) {
        return Ranks.local(2).run(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator());
            ModelPlan plan = new ModelPlan(byTokens ? ranks.withSequenceParallel() : ranks);
            Device device = rank.device();
            FanOut memory = new FanOut("memory");
            try (Scope scope = device.openScope()) {
                Layer layer = c.kind(recomputation).maker().make(plan.group("layer"), memory, scope);
                try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                        Pass pass = Pass.training(device)) {
                    Sequences keys = Sequences.packed(scope, 8, 20, 4);
                    pass.begin(Sequences.packed(scope, 16, 3, 13).withKeys(keys));
                    if (recipe != null) {
                        pass.autocast(Quantizers.allocate(parameters, recipe));
                    }
                    long rows = byTokens ? TOKENS_OF_RANKS / 2 : TOKENS_OF_RANKS;
                    memory.forward(drawn(scope, rows, EveryLayer.MEMORY_HIDDEN, 1), pass);
                    Tensor y = layer.forward(drawn(scope, rows, HIDDEN, 2), pass);
                    List<float[]> results = new ArrayList<>(List.of(y.toFloats(pass.stream())));
                    results.add(
                            layer.backward(drawn(scope, rows, HIDDEN, 3), pass).toFloats(pass.stream()));
                    results.add(memory.backward(pass).toFloats(pass.stream()));
                    parameters.completeGradients();
                    parameters.all().forEach(one -> results.add(one.gradient().toFloats(pass.stream())));
                    return results;
                }
            }
        });
    }

    private static Tensor drawn(Scope scope, long rows, long columns, long seed) {
        return drawn(scope, DType.BFLOAT16, rows, columns, seed);
    }

    private static Tensor drawn(Scope scope, DType dtype, long rows, long columns, long seed) {
        float[] values = new float[(int) (rows * columns)];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) CounterRandom.normal(seed, i);
        }
        Tensor tensor = scope.tensor(dtype, rows, columns);
        tensor.set(scope.stream(), values);
        return tensor;
    }

    /** Rows of 136 bytes, which {@code ops_residual_norm_forward} does not take. */
    @Test
    void rowsThatTheFusedNormDoesNotTakeGiveTheSameBits() {
        List<List<float[]>> results = new ArrayList<>();
        for (Recomputation recomputation : Recomputation.values()) {
            ModelPlan plan = new ModelPlan();
            TransformerLayer layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(34, AttentionConfig.of(2, 16, AttentionMask.none()))
                            .withInitializer(Initializer.normal(0.3f))
                            .withRecomputation(recomputation),
                    plan.group("layer"));
            try (Device device = Device.open();
                    Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 3);
                    Scope scope = device.openScope();
                    Pass pass = Pass.training(device)) {
                pass.begin(Sequences.packed(scope, 9, 4));
                layer.forward(drawn(scope, DType.FLOAT32, 13, 34, 1), pass);
                layer.backward(drawn(scope, DType.FLOAT32, 13, 34, 2), pass);
                parameters.completeGradients();
                results.add(parameters.all().stream()
                        .map(one -> one.gradient().toFloats(pass.stream()))
                        .toList());
            }
        }
        for (int i = 0; i < results.getFirst().size(); i++) {
            assertArrayEquals(results.getFirst().get(i), results.getLast().get(i), "gradient " + i);
        }
    }

    /** Another reader of the norm's output changes nothing: the caller's memory has it, and backward recomputes it. */
    @Test
    void aBranchThatGivesItsNormsOutputGivesTheSameBits() {
        List<EveryLayer.Step> steps = new ArrayList<>();
        for (Recomputation recomputation : Recomputation.values()) {
            steps.add(run(
                    cases().getFirst(),
                    recomputation,
                    DType.BFLOAT16,
                    null,
                    EveryLayerCase.PLAIN,
                    MemoryReuse.POISONED,
                    EveryLayerCase.ALL,
                    (model, pass) -> {
                        LayerNormMlp mlp = ((TransformerLayer) model.layer).mlp();
                        model.begin(pass);
                        Tensor normed = pass.scope().like(model.x);
                        Tensor y = mlp.forwardWithNorm(model.x, normed, pass);
                        Tensor dx = mlp.backwardWithNorm(model.gradient(y), model.gradient(y), pass);
                        return new EveryLayer.Step(
                                model.read(y), model.read(dx), model.read(normed), gradientsOf(mlp, model));
                    }));
        }
        EveryLayerCase.assertSame(steps.getFirst(), steps.getLast());
    }

    private static List<float[]> gradientsOf(LayerNormMlp mlp, EveryLayer model) {
        return List.of(
                model.read(mlp.norm().weight().gradient()),
                model.read(mlp.fc1().weight().gradient()),
                model.read(mlp.fc2().weight().gradient()));
    }

    /** No gradient is written of weights that lie beside those of the norm. */
    @Test
    void normWeightsThatHaveChangedAreRefused() {
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(
                ENCODER.withBias(Bias.ABSENT).withRecomputation(Recomputation.NORMS), plan.group("layer"));
        freeze(plan, ".*norm.*");
        Recipe recipe = Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3, WeightStorage.QUANTIZED);
                Quantizers quantizers = Quantizers.allocate(parameters, recipe);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.begin(Sequences.packed(scope, 9, 4));
            pass.autocast(quantizers);
            layer.forward(drawn(scope, 13, HIDDEN, 1), pass);
            layer.mlp().norm().weight().weight().zero(pass.stream());
            Tensor dy = drawn(scope, 13, HIDDEN, 2);
            assertThrown(
                    IllegalStateException.class,
                    "backward: expected weights as forward has read them, got layer.mlp.norm.weight of parameters that have"
                            + " changed since: an optimizer's step, changed(), a loaded state or a write by set, copyFrom or"
                            + " zero came between; call backward before it, or pass.begin() and forward again",
                    () -> layer.backward(dy, pass));
        }
    }

    private static String explained(Case c, @Nullable Recipe recipe, Consumer<ModelPlan> change) {
        return run(
                c,
                Recomputation.NORMS,
                DType.BFLOAT16,
                recipe,
                EveryLayerCase.PLAIN,
                MemoryReuse.USUAL,
                change,
                (model, pass) -> model.layer.explain(model.x, model.begin(pass)));
    }

    private static void assertLine(String explained, String norm, String end) {
        String line = explained
                .lines()
                .map(String::strip)
                .filter(one -> one.startsWith("layer." + norm + ":"))
                .findFirst()
                .orElseThrow();
        assertTrue(line.endsWith(end), line);
    }

    @Test
    void explains() {
        Case encoder = cases().getFirst();
        String plain = explained(encoder, null, EveryLayerCase.ALL);
        assertLine(
                plain, "attention.qkv.norm", "; its output is not saved: backward recomputes it by te_layernorm_fwd");
        assertLine(plain, "mlp.norm", "; its output is not saved: backward recomputes it by ops_residual_norm_forward");
        String cast = explained(encoder, Float8CurrentScaling.standard(), EveryLayerCase.ALL);
        for (String norm : List.of("attention.qkv.norm", "mlp.norm")) {
            assertLine(cast, norm, "; its output is saved in eight bits only, and not recomputed");
        }
        String frozen = explained(encoder, null, plan -> freeze(plan, ".*fc1\\.weight"));
        assertLine(
                frozen, "attention.qkv.norm", "; its output is not saved: backward recomputes it by te_layernorm_fwd");
        assertLine(frozen, "mlp.norm", "; its output is not saved, for no gradient needs it");
    }

    @Test
    void aMissingChoiceIsRefused() {
        assertThrown(
                NullPointerException.class,
                "recomputation: expected a value, got null",
                () -> ENCODER.withRecomputation(null));
    }
}
