package dev.chagres.parallel;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TokenScatter;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.FlightRecorder;
import dev.chagres.nccl.Operation;
import dev.chagres.nccl.RecordedCall;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8BlockScaling.Blocks;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.DataParallel;
import dev.chagres.te.Activation;
import dev.chagres.te.QkvFormat;
import java.lang.management.ManagementFactory;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Sequence-parallel ranks with a recipe compute what tensor-parallel ranks do that all have all tokens. */
@Tag("L0")
@Tag("L2")
class SequenceParallelRecipesTest {
    private static final int HIDDEN = 64;
    private static final int STEPS = 4;
    private static final int ROUNDS = 10;
    private static final int CALLS = 40;
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final String GRADIENT = "gradient of ";

    private enum Case {
        DELAYED(DelayedScaling.standard()),
        DELAYED_ATTENTION(DelayedScaling.standard().withAttention(AttentionPrecision.FP8_MHA)),
        CURRENT(Float8CurrentScaling.standard()),
        BLOCKS(Float8BlockScaling.standard()),
        SQUARES_OF_INPUTS(Float8BlockScaling.standard()
                .withBlocks(new Blocks(Scaling.BLOCK_2D, Scaling.BLOCK_1D, Scaling.BLOCK_1D))),
        CURRENT_HIGH_PRECISION(Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION)),
        CURRENT_DEQUANTIZED(Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED)),
        BLOCKS_HIGH_PRECISION(Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION)),
        BLOCKS_DEQUANTIZED(Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED));

        private final Recipe recipe;

        Case(Recipe recipe) {
            this.recipe = recipe;
        }
    }

    /** Which tokens ranks have between branches. */
    private enum Tokens {
        ALL,
        PART
    }

    /** What stands in the layers. */
    private enum Inside {
        USUAL(layer -> layer),
        DROPPED(layer -> layer.withHiddenDropout(Dropout.of(0.1f))),
        NORMED_OUTPUT(layer -> layer.withNormPlacement(NormPlacement.OUTPUT)),
        PARALLEL(layer -> layer.withBranchOrder(BranchOrder.PARALLEL).withBias(Bias.ABSENT)),
        GATED(layer -> layer.withNorm(NormConfig.rmsNorm(HIDDEN))
                .withMlp(layer.mlp().withActivation(Activation.SWIGLU).withRecomputation(Recomputation.ACTIVATION))),
        SMALL(layer -> layer.withMlp(layer.mlp().withRecomputation(Recomputation.FC1_AND_ACTIVATION))),
        RECOMPUTED_NORMS(layer -> layer.withRecomputation(TransformerLayerConfig.Recomputation.NORMS)),
        SMALL_RECOMPUTED_NORMS(
                layer -> SMALL.change.apply(layer).withRecomputation(TransformerLayerConfig.Recomputation.NORMS)),
        WRAPPED(layer -> layer),
        FROZEN(layer -> layer),
        /** Heads that attention computes in eight bits. */
        WIDE(layer -> layer.withAttention(AttentionConfig.of(4, 128, AttentionMask.none())));

        private final UnaryOperator<TransformerLayerConfig> change;

        Inside(UnaryOperator<TransformerLayerConfig> change) {
            this.change = change;
        }

        private TransformerLayerConfig config() {
            return change.apply(TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.none()))
                    .withMlp(MlpConfig.gelu(HIDDEN).withInner(192))
                    .withInitializer(Initializer.normal(0.2f)));
        }
    }

    private static final class Model implements AutoCloseable {
        private final TokenScatter scatter;
        private final Layer layers;
        private final TokenGather gather;
        private final Parameters parameters;
        private final Device device;
        private final boolean isDense;

        private Model(Rank rank, TensorParallel ranks, Inside inside) {
            ModelPlan plan = new ModelPlan(ranks);
            TransformerLayerConfig config = inside.config();
            scatter = new TokenScatter(plan);
            layers = Sequential.of(2, i -> {
                Layer layer = new TransformerLayer(config, plan.group("layers." + i));
                return inside == Inside.WRAPPED ? new Recomputed(layer) : layer;
            });
            gather = new TokenGather(plan);
            if (inside == Inside.FROZEN) {
                plan.parameters().stream()
                        .filter(one -> one.name().matches("layers\\.1\\..*(fc2|qkv\\.linear)\\.weight"))
                        .forEach(Parameter::freeze);
            }
            device = rank.device();
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 9);
            isDense = inside == Inside.WIDE;
        }

        private Tensor forward(Tensor x, Pass pass) {
            return gather.forward(layers.forward(scatter.forward(x, pass), pass), pass);
        }

        private Tensor backward(Tensor dy, Pass pass) {
            return scatter.backward(layers.backward(gather.backward(dy, pass), pass), pass);
        }

        private void begin(int tokens, Pass pass) {
            pass.begin();
            Scope scope = pass.scope();
            pass.sequences(
                    isDense
                            ? Sequences.dense(scope, QkvFormat.BSHD, 2, tokens / 2)
                            : Sequences.packed(scope, tokens - 3, 1, 2));
        }

        @Override
        public void close() {
            parameters.close();
        }
    }

    private static Tensor drawn(Pass pass, int tokens, int seed) {
        float[] values = new float[tokens * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            // Ranks' largest magnitudes differ, and those of steps do.
            values[i] = (float) CounterRandom.normal(seed, i) * (1 + (i / HIDDEN) % 7) * (1 + seed % 3);
        }
        Tensor tensor = pass.scope().tensor(DType.BFLOAT16, tokens, HIDDEN);
        tensor.set(pass.stream(), values);
        return tensor;
    }

    /** Steps without an optimizer, the first one calibrating, each of two micro-batches and an evaluation. */
    private static Map<String, float[]> run(Rank rank, Case one, Inside inside, int tokens, Tokens shared) {
        Map<String, float[]> results = new LinkedHashMap<>();
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.TENSOR, rank.count());
        try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
            TensorParallel ranks = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
            try (Model model = new Model(rank, shared == Tokens.PART ? ranks.withSequenceParallel() : ranks, inside);
                    DataParallel strategy = DataParallel.of(model.parameters, mesh.along(MeshDimension.REPLICATE));
                    Pass pass = Pass.training(rank.device());
                    Pass evaluation = Pass.evaluation(rank.device())) {
                Quantizers quantizers = Quantizers.allocate(model.parameters, one.recipe);
                strategy.follow(pass);
                strategy.reduceAmax(quantizers);
                evaluation.autocast(quantizers);
                for (int step = 0; step < STEPS; step++) {
                    if (step == 0) {
                        pass.calibrate(quantizers);
                    } else {
                        pass.autocast(quantizers);
                    }
                    step(model, strategy, pass, tokens, step, results);
                    model.begin(tokens, evaluation);
                    results.put(
                            "evaluation " + step,
                            model.forward(drawn(evaluation, tokens, step), evaluation)
                                    .toFloats(pass.stream()));
                    model.parameters.nextStep();
                }
                quantizers.state().tensors().forEach((name, scale) -> results.put(name, scale.toFloats(pass.stream())));
            }
        }
        return results;
    }

    private static void step(
            Model model, DataParallel strategy, Pass pass, int tokens, int step, Map<String, float[]> results) {
        for (int i = 0; i < 2; i++) {
            model.begin(tokens, pass);
            if (i == 1) {
                strategy.lastMicroBatch();
            }
            pass.seed(4, step, i);
            Tensor y = model.forward(drawn(pass, tokens, 10 * step + i), pass);
            results.put("y " + step + " " + i, y.toFloats(pass.stream()));
            Tensor dx = model.backward(drawn(pass, tokens, 10 * step + i + 5), pass);
            results.put("dx " + step + " " + i, dx.toFloats(pass.stream()));
        }
        strategy.sumGradients();
        model.parameters.completeGradients();
        for (Parameter parameter : model.parameters.all()) {
            if (!parameter.isFrozen()) {
                results.put(
                        GRADIENT + parameter.name() + (parameter.shape().rank() == 1 ? " (sum)" : "") + " " + step,
                        parameter.gradient().toFloats(pass.stream()));
            }
        }
    }

    /** All that products give has the same bits; the gradients of norms and biases are sums in another order. */
    @ParameterizedTest
    @CsvSource({
        "DELAYED, USUAL, 2, 48",
        "DELAYED, DROPPED, 4, 20",
        "DELAYED, GATED, 2, 22",
        "DELAYED, SMALL, 2, 30",
        "DELAYED, FROZEN, 2, 20",
        "DELAYED, SMALL_RECOMPUTED_NORMS, 2, 30",
        "CURRENT_HIGH_PRECISION, RECOMPUTED_NORMS, 2, 22",
        "BLOCKS, RECOMPUTED_NORMS, 2, 22",
        "BLOCKS_DEQUANTIZED, SMALL_RECOMPUTED_NORMS, 2, 22",
        "DELAYED, NORMED_OUTPUT, 2, 32",
        "DELAYED, WIDE, 2, 64",
        "DELAYED_ATTENTION, WIDE, 2, 64",
        "CURRENT, USUAL, 2, 22",
        "CURRENT, SMALL, 4, 32",
        "CURRENT, PARALLEL, 2, 22",
        "CURRENT, WRAPPED, 4, 20",
        "CURRENT_HIGH_PRECISION, GATED, 2, 22",
        "CURRENT_DEQUANTIZED, USUAL, 2, 22",
        "CURRENT_DEQUANTIZED, SMALL, 2, 22",
        "BLOCKS, USUAL, 2, 22",
        "BLOCKS, USUAL, 2, 32",
        "BLOCKS, USUAL, 2, 256",
        "BLOCKS, SMALL, 2, 256",
        "BLOCKS, SMALL, 4, 64",
        "BLOCKS, PARALLEL, 2, 512",
        "BLOCKS, WRAPPED, 2, 256",
        "BLOCKS, GATED, 2, 256",
        "BLOCKS, FROZEN, 4, 32",
        "SQUARES_OF_INPUTS, USUAL, 2, 32",
        "SQUARES_OF_INPUTS, SMALL, 2, 256",
        "BLOCKS_HIGH_PRECISION, USUAL, 2, 32",
        "BLOCKS_DEQUANTIZED, USUAL, 2, 22",
        "BLOCKS_DEQUANTIZED, SMALL, 2, 32",
        "BLOCKS_DEQUANTIZED, SMALL, 2, 256"
    })
    void resultsAreThoseOfRanksWithAllTokens(Case one, Inside inside, int ranks, int tokens) {
        DevicesNeeded.assume(ranks);
        List<Map<String, float[]>> expected =
                Ranks.local(ranks).run(rank -> run(rank, one, inside, tokens, Tokens.ALL));
        List<Map<String, float[]>> actual = Ranks.local(ranks).run(rank -> run(rank, one, inside, tokens, Tokens.PART));
        for (int rank = 0; rank < ranks; rank++) {
            Map<String, float[]> part = actual.get(rank);
            assertEquals(expected.get(rank).keySet(), part.keySet());
            expected.get(rank).forEach((name, values) -> {
                boolean isSum = name.contains("(sum)") || name.startsWith(GRADIENT) && name.contains("norm");
                if (isSum || Provider.current() == Provider.CUDA) {
                    assertClose(values, part.get(name), name);
                } else {
                    assertArrayEquals(values, part.get(name), name);
                }
            });
        }
    }

    private record Gathers(long quantized, long gradients, long sixteenBits, long scales) {}

    /** Counts the elements that a step's gathers take from a rank, by type. */
    private static Gathers gathers(Rank rank, Recipe recipe, int tokens) {
        TensorParallel ranks = TensorParallel.of(rank.communicator()).withSequenceParallel();
        try (Model model = new Model(rank, ranks, Inside.USUAL);
                Pass pass = Pass.training(rank.device())) {
            pass.autocast(Quantizers.allocate(model.parameters, recipe));
            FlightRecorder recorder = FlightRecorder.of(rank.communicator());
            long before = recorder.count();
            step(model, pass, tokens);
            Map<DType, Long> elements = new EnumMap<>(DType.class);
            for (RecordedCall call : recorder.calls()) {
                if (call.number() >= before && call.operation() == Operation.ALL_GATHER) {
                    elements.merge(call.dtype(), call.elements(), Long::sum);
                }
            }
            return new Gathers(
                    elements.getOrDefault(DType.FLOAT8_E4M3, 0L),
                    elements.getOrDefault(DType.FLOAT8_E5M2, 0L),
                    elements.getOrDefault(DType.BFLOAT16, 0L),
                    elements.getOrDefault(DType.FLOAT32, 0L));
        }
    }

    private static void step(Model model, Pass pass, int tokens) {
        model.begin(tokens, pass);
        model.backward(model.forward(drawn(pass, tokens, 1), pass), pass);
        model.parameters.nextStep();
    }

    /** Of each of two layers two inputs, gathered twice, and two gradients; what {@link TokenGather} and its kin move is BF16. */
    @ParameterizedTest
    @CsvSource({
        "DELAYED, 22, 4, 2, 0, 0",
        "CURRENT, 22, 4, 2, 0, 0",
        "BLOCKS, 22, 0, 0, 6, 0",
        "BLOCKS, 32, 2, 0, 4, 32",
        "BLOCKS, 256, 4, 0, 2, 384",
        "SQUARES_OF_INPUTS, 256, 0, 0, 6, 0"
    })
    void tokensTravelAsBytes(Case one, int tokens, long inputs, long gradients, long whole, long scales) {
        DevicesNeeded.assume(2);
        long part = tokens / 2L * HIDDEN;
        for (Gathers gathers : Ranks.local(2).run(rank -> gathers(rank, one.recipe, tokens))) {
            assertEquals(
                    new Gathers(2 * inputs * part, 2 * gradients * part, (2 * whole + 2) * part, 2 * scales), gathers);
        }
    }

    /** Without a strategy that reduces magnitudes: what ranks gather has the scale of all of them. */
    @Test
    void scalesAreThoseOfAllRanks() {
        DevicesNeeded.assume(2);
        List<Map<String, float[]>> states = Ranks.local(2).run(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator()).withSequenceParallel();
            try (Model model = new Model(rank, ranks, Inside.USUAL);
                    Pass pass = Pass.training(rank.device())) {
                Quantizers quantizers = Quantizers.allocate(model.parameters, DelayedScaling.standard());
                quantizers.reduceAmax(amaxes -> {});
                quantizers.reduceAmax(null);
                pass.autocast(quantizers);
                step(model, pass, 22);
                Map<String, float[]> scales = new LinkedHashMap<>();
                quantizers.state().tensors().forEach((name, one) -> scales.put(name, one.toFloats(pass.stream())));
                return scales;
            }
        });
        assertTrue(states.getFirst().values().stream().anyMatch(scale -> scale.length == 1 && scale[0] != 1));
        states.getFirst()
                .forEach((name, values) ->
                        assertArrayEquals(values, states.get(1).get(name), name));
    }

    private static Map<String, Float> largest(Rank rank, Case one, Tokens shared) {
        TensorParallel ranks = TensorParallel.of(rank.communicator());
        try (Model model = new Model(rank, shared == Tokens.PART ? ranks.withSequenceParallel() : ranks, Inside.USUAL);
                Pass pass = Pass.training(rank.device())) {
            Quantizers quantizers = Quantizers.allocate(model.parameters, one.recipe);
            quantizers.measureEvery(1);
            pass.autocast(quantizers);
            step(model, pass, 22);
            Map<String, Float> all = new TreeMap<>();
            quantizers.statistics().forEach(measured -> all.put(measured.site().name(), measured.amax()));
            return all;
        }
    }

    /** A rank measures the casts that it makes: the largest of all ranks is that of all tokens. */
    @ParameterizedTest
    @EnumSource(names = {"DELAYED", "CURRENT", "BLOCKS"})
    void castsOfOwnTokensAreMeasured(Case one) {
        DevicesNeeded.assume(2);
        List<Map<String, Float>> expected = Ranks.local(2).run(rank -> largest(rank, one, Tokens.ALL));
        List<Map<String, Float>> actual = Ranks.local(2).run(rank -> largest(rank, one, Tokens.PART));
        assertEquals(24, actual.getFirst().size());
        expected.getFirst()
                .forEach((site, amax) -> assertEquals(
                        Math.max(amax, expected.get(1).get(site)),
                        Math.max(actual.getFirst().get(site), actual.get(1).get(site)),
                        Provider.current() == Provider.REFERENCE ? 0 : 1e-2 * amax,
                        site));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "DELAYED | in eight bits, in backward again | in eight bits; ops_bias_add",
                "CURRENT | in eight bits, with the scale of the amax over all ranks, which ncclAllReduce computes, in"
                        + " backward again"
                        + " | with the scale of the amax over all ranks, which ncclAllReduce computes; ops_bias_add",
                "CURRENT_HIGH_PRECISION | which ncclAllReduce computes, in backward in the model's type | gradient ncclAllGather gathers; ops_bias_add",
                "BLOCKS | in the model's type, for 11 tokens a rank are no multiple of 16, in backward in the model's type, for blocks"
                        + " of 128 tokens lie on several ranks | in the model's type, which takes as many bytes as"
                        + " rowwise and columnwise data with block scales; ops_bias_add",
                "SQUARES_OF_INPUTS | in the model's type, for blocks would span tokens of several ranks, in backward"
                        + " in the model's type, for"
                        + " blocks of 128 tokens lie on several ranks | as many bytes as"
                        + " rowwise and columnwise data with block scales; ops_bias_add"
            })
    void explainSaysWhatTravels(Case one, String column, String row) {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator()).withSequenceParallel();
            try (Model model = new Model(rank, ranks, Inside.USUAL);
                    Pass pass = Pass.training(rank.device())) {
                pass.autocast(Quantizers.allocate(model.parameters, one.recipe));
                model.begin(22, pass);
                String text = model.layers.explain(drawn(pass, 11, 1), pass);
                assertTrue(text.contains("tokens ncclAllGather gathers") && text.contains(column), text);
                assertTrue(text.contains("over which ncclReduceScatter sums the output") && text.contains(row), text);
            }
        });
    }

    @ParameterizedTest
    @CsvSource({"DELAYED, 22", "CURRENT, 22", "BLOCKS, 22", "BLOCKS, 256"})
    void aSteadyStepMakesNoGarbage(Case one, int tokens) {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            TensorParallel ranks = TensorParallel.of(rank.communicator()).withSequenceParallel();
            try (Model model = new Model(rank, ranks, Inside.USUAL);
                    Pass pass = Pass.training(rank.device());
                    Scope inputs = rank.device().openScope()) {
                pass.autocast(Quantizers.allocate(model.parameters, one.recipe));
                model.begin(tokens, pass);
                Tensor x = inputs.tensor(DType.BFLOAT16, tokens, HIDDEN);
                x.copyFrom(pass.stream(), drawn(pass, tokens, 1));
                Sequences sequences = Sequences.packed(inputs, tokens - 3, 1, 2);
                Runnable step = () -> {
                    pass.begin(sequences);
                    model.backward(model.forward(x, pass), pass);
                    model.parameters.nextStep();
                };
                step.run();
                step.run();
                long held = rank.device().peakHeldBytes();
                long least = Long.MAX_VALUE;
                for (int round = 0; round < ROUNDS; round++) { // as many on each rank
                    long allocated = THREADS.getCurrentThreadAllocatedBytes();
                    for (int i = 0; i < CALLS; i++) {
                        step.run();
                    }
                    least = Math.min(least, THREADS.getCurrentThreadAllocatedBytes() - allocated);
                }
                assertTrue(least < 8L * CALLS, least + " bytes in " + CALLS + " steps");
                assertEquals(held, rank.device().peakHeldBytes(), "device memory");
            }
        });
    }

    private static void assertClose(float[] expected, float[] actual, String what) {
        double squares = 0;
        double differences = 0;
        for (int i = 0; i < expected.length; i++) {
            squares += (double) expected[i] * expected[i];
            double difference = (double) expected[i] - actual[i];
            differences += difference * difference;
        }
        double relative = Math.sqrt(differences / Math.max(squares, 1e-30));
        assertTrue(relative < 1e-2, () -> what + " differs by " + relative + " of its norm");
    }
}
