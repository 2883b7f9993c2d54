package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
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

/** Layers that recompute the outputs of their norms give the same bits as layers that save them. */
@Tag("L0")
@Tag("L1")
class NormRecomputationTest {
    private static final int TOKENS_OF_RANKS = 32;

    static List<NormRecomputationCase> cases() {
        return NormRecomputationCase.all();
    }

    /** Two steps of one pass: the second one's memory is that of the first. */
    private static EveryLayer.Step steps(EveryLayer model, Pass pass) {
        model.step(pass);
        model.parameters.nextStep();
        return model.step(pass);
    }

    private static void assertSameBits(
            NormRecomputationCase c,
            DType dtype,
            @Nullable Recipe recipe,
            UnaryOperator<Layer> wrapper,
            Consumer<ModelPlan> change) {
        EveryLayer.Step expected = c.run(Recomputation.NONE, dtype, recipe, change, NormRecomputationTest::steps);
        for (MemoryReuse reuse : MemoryReuse.values()) {
            EveryLayer.Step actual =
                    c.run(Recomputation.NORMS, dtype, recipe, wrapper, reuse, change, NormRecomputationTest::steps);
            EveryLayerCase.assertSame(expected, actual);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void givesTheSameBits(NormRecomputationCase c) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            assertSameBits(c, dtype, null, EveryLayerCase.PLAIN, EveryLayerCase.ALL);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void recomputedLayersGiveTheSameBits(NormRecomputationCase c) {
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
    void recipesGiveTheSameBits(NormRecomputationCase c) {
        for (Recipe recipe : RECIPES) {
            assertSameBits(c, DType.BFLOAT16, recipe, EveryLayerCase.PLAIN, EveryLayerCase.ALL);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void frozenParametersGiveTheSameBits(NormRecomputationCase c) {
        for (String pattern : List.of(".*norm.*", ".*(linear|query|fc1)\\.weight", ".*attention.*", ".*mlp.*", ".*")) {
            assertSameBits(
                    c, DType.BFLOAT16, null, EveryLayerCase.PLAIN, plan -> NormRecomputationCase.freeze(plan, pattern));
        }
    }

    /** Forward of the second pass comes before backward of the first. */
    @ParameterizedTest
    @MethodSource("cases")
    void twoPassesAtOnceGiveTheSameBits(NormRecomputationCase c) {
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
            steps.add(c.run(recomputation, DType.BFLOAT16, null, EveryLayerCase.ALL, run));
        }
        EveryLayerCase.assertSame(steps.getFirst(), steps.getLast());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aCapturedStepGivesTheSameBits(NormRecomputationCase c) {
        List<float[]> expected = captured(c, Recomputation.NONE);
        List<float[]> actual = captured(c, Recomputation.NORMS);
        assertSameGradients(expected, actual);
    }

    private static void assertSameGradients(List<float[]> expected, List<float[]> actual) {
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "gradient " + i);
        }
    }

    /** Returns the gradients of a second launch. */
    private static List<float[]> captured(NormRecomputationCase c, Recomputation recomputation) {
        return c.run(
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
    void ranksGiveTheSameBits(NormRecomputationCase c) {
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
            NormRecomputationCase c, Recomputation recomputation, boolean byTokens, @Nullable Recipe recipe) {
        return Ranks.local(2).run(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator());
            ModelPlan plan = new ModelPlan(byTokens ? ranks.withSequenceParallel() : ranks);
            Device device = rank.device();
            SharedInput memory = new SharedInput("memory");
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
                    memory.forward(NormRecomputationCase.drawn(scope, rows, EveryLayer.MEMORY_HIDDEN, 1), pass);
                    Tensor y = layer.forward(
                            NormRecomputationCase.drawn(scope, rows, NormRecomputationCase.HIDDEN, 2), pass);
                    List<float[]> results = new ArrayList<>(List.of(y.toFloats(pass.stream())));
                    results.add(layer.backward(
                                    NormRecomputationCase.drawn(scope, rows, NormRecomputationCase.HIDDEN, 3), pass)
                            .toFloats(pass.stream()));
                    results.add(memory.backward(pass).toFloats(pass.stream()));
                    parameters.completeGradients();
                    parameters.all().forEach(one -> results.add(one.gradient().toFloats(pass.stream())));
                    return results;
                }
            }
        });
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
                layer.forward(NormRecomputationCase.drawn(scope, DType.FLOAT32, 13, 34, 1), pass);
                layer.backward(NormRecomputationCase.drawn(scope, DType.FLOAT32, 13, 34, 2), pass);
                parameters.completeGradients();
                results.add(parameters.all().stream()
                        .map(one -> one.gradient().toFloats(pass.stream()))
                        .toList());
            }
        }
        assertSameGradients(results.getFirst(), results.getLast());
    }

    /** Another reader of the norm's output changes nothing: the caller's memory has it, and backward recomputes it. */
    @Test
    void aBranchThatGivesItsNormsOutputGivesTheSameBits() {
        List<EveryLayer.Step> steps = new ArrayList<>();
        for (Recomputation recomputation : Recomputation.values()) {
            steps.add(cases().getFirst()
                    .run(
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
}
