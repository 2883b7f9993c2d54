package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8BlockScaling.Blocks;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Sharded weights are gathered in eight bits if products read them in eight bits, and the results are those of one rank. */
@Tag("L0")
@Tag("L2")
class QuantizedGathersTest {
    private static final int GROUPS = 5;
    /** No multiples of 128, so that ranks' parts end inside of blocks. */
    private static final int HIDDEN = 208;

    private static final int TOKENS = 24;
    private static final int STEPS = 5;

    /** Three ranks round their sums otherwise than one rank does; with this seed no weight of BF16 becomes its neighbour by that. */
    private static final long SEED = 12;

    /** Recipes, also with backward in another precision. */
    private enum Case {
        DELAYED(DelayedScaling.standard()),
        CURRENT(Float8CurrentScaling.standard()),
        BLOCKS(Float8BlockScaling.standard()),
        /** Weights that are gathered in 16 bits, and cast by each rank. */
        ROWS_OF_WEIGHTS(Float8BlockScaling.standard()
                .withBlocks(new Blocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.BLOCK_2D))),
        CURRENT_HIGH_PRECISION(Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION)),
        CURRENT_DEQUANTIZED(Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED)),
        BLOCKS_HIGH_PRECISION(Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION)),
        BLOCKS_DEQUANTIZED(Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED));

        private final Recipe recipe;

        Case(Recipe recipe) {
            this.recipe = recipe;
        }
    }

    private static Layer layers(ModelPlan plan) {
        return Sequential.of(GROUPS, i -> {
            ModelPlan group = plan.group("layers." + i);
            return i == 2
                    ? new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), group) // frozen
                    : new LayerNormMlp(
                            MlpConfig.gelu(HIDDEN).withInner(80 + 16 * i).withActivation(Activation.SWIGLU), group);
        });
    }

    private static ModelPlan frozen(ModelPlan plan) {
        plan.groups().get("layers.2").forEach(Parameter::freeze);
        return plan;
    }

    /** Trains with passes of evaluation between; returns what every call gave. */
    private static List<float[]> train(
            Layer layers, Parameters parameters, Recipe recipe, int accumulated, @Nullable FullySharded strategy) {
        Device device = parameters.scope().stream().device();
        List<float[]> results = new ArrayList<>();
        try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            Quantizers quantizers = Quantizers.allocate(parameters, recipe);
            if (strategy != null) {
                strategy.follow(pass);
                strategy.follow(evaluation);
                strategy.reduceAmax(quantizers);
            }
            for (int step = 0; step < STEPS; step++) {
                if (step == 0) {
                    pass.calibrate(quantizers);
                } else {
                    pass.autocast(quantizers);
                }
                if (step == 3) {
                    evaluation.noAutocast();
                } else if (step > 0) {
                    evaluation.autocast(quantizers);
                }
                results.add(evaluated(layers, evaluation, step));
                for (int i = 0; i < accumulated; i++) {
                    pass.begin();
                    if (strategy != null) {
                        strategy.lastMicroBatch();
                    }
                    Tensor y = layers.forward(input(pass, step), pass);
                    results.add(y.toFloats(pass.stream()));
                    layers.backward(y, pass);
                }
                if (strategy != null) {
                    strategy.sumGradients();
                }
                optimizer.step(1e-2f);
                results.add(evaluated(layers, evaluation, step + 100));
            }
        }
        return results;
    }

    private static float[] evaluated(Layer layers, Pass evaluation, int step) {
        evaluation.begin();
        return layers.forward(input(evaluation, step), evaluation).toFloats(evaluation.stream());
    }

    private static Tensor input(Pass pass, int step) {
        float[] values = new float[TOKENS * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(0.7 * i + step);
        }
        Tensor x = pass.scope().tensor(DType.BFLOAT16, TOKENS, HIDDEN);
        x.set(pass.stream(), values);
        return x;
    }

    private static List<float[]> ofOne(Recipe recipe, int accumulated) {
        ModelPlan plan = new ModelPlan();
        Layer layers = layers(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, frozen(plan), DType.BFLOAT16, SEED)) {
            return train(layers, parameters, recipe, accumulated, null);
        }
    }

    private static List<float[]> ofRank(Rank rank, Recipe recipe, int copies) {
        ModelPlan plan = new ModelPlan();
        Layer layers = layers(plan);
        MeshShape shape = MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, copies)
                .with(MeshDimension.SHARD, rank.count() / copies);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                FullySharded strategy = FullySharded.allocate(frozen(plan), DType.BFLOAT16, SEED, config, mesh)) {
            return train(layers, strategy.parameters(), recipe, 1, strategy);
        }
    }

    /** Each rank has the same sequences, so that gradients are sums of as many equal terms. */
    @ParameterizedTest
    @CsvSource({
        "DELAYED, 1, 1",
        "DELAYED, 2, 1",
        "DELAYED, 3, 1",
        "CURRENT, 2, 1",
        "CURRENT, 3, 1",
        "BLOCKS, 2, 1",
        "ROWS_OF_WEIGHTS, 2, 1",
        "ROWS_OF_WEIGHTS, 4, 2",
        "BLOCKS, 3, 1",
        "BLOCKS, 4, 2",
        "DELAYED, 4, 2",
        "CURRENT_HIGH_PRECISION, 2, 1",
        "CURRENT_DEQUANTIZED, 3, 1",
        "BLOCKS_HIGH_PRECISION, 3, 1"
    })
    void resultsAreThoseOfOneRank(Case one, int ranks, int copies) {
        DevicesNeeded.assume(ranks);
        List<float[]> expected = ofOne(one.recipe, ranks);
        int[] own = own(expected.size(), ranks);
        for (List<float[]> actual : Ranks.local(ranks).run(rank -> ofRank(rank, one.recipe, copies))) {
            assertEquals(own.length, actual.size());
            for (int i = 0; i < own.length; i++) {
                // Masters are FP32, and a sum of equal terms in another order may differ in the last bit.
                double tolerance = Provider.current() == Provider.REFERENCE ? 1e-6 : 5e-2;
                assertClose(expected.get(own[i]), actual.get(i), tolerance, "result " + i);
            }
        }
    }

    /** Which results of a rank that accumulates are those of a rank with one micro-batch a step. */
    private static int[] own(int results, int accumulated) {
        return java.util.stream.IntStream.range(0, results)
                .filter(i -> i % (accumulated + 2) <= 1 || i % (accumulated + 2) == accumulated + 1)
                .toArray();
    }

    private static void assertClose(float[] expected, float[] actual, double tolerance, String what) {
        float most = 0;
        for (float value : expected) {
            most = Math.max(most, Math.abs(value));
        }
        assertTrue(most > 0, what);
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i], actual[i], tolerance * most, what + "[" + i + "]");
        }
    }

    private static long elements(FlatGroup group) {
        return group.pieces().stream().mapToLong(FlatParameter::count).sum();
    }

    private static long products(FlatGroup group) {
        return group.members().stream()
                .filter(member -> member.shape().rank() == 2)
                .mapToLong(member -> member.shape().count())
                .sum();
    }

    /** Bytes of a piece with products are as many as its elements, what it keeps in 16 bits twice as many. */
    private static long quantized(FlatGroup group) {
        long sum = 0;
        for (FlatParameter piece : group.pieces()) {
            long products = group.members().stream()
                    .filter(member -> member.shape().rank() == 2 && piece.holds(member))
                    .mapToLong(member -> member.shape().count())
                    .sum();
            sum += products == 0 ? 2 * piece.count() : piece.count() + 2 * (piece.count() - products);
        }
        return sum;
    }

    private static long reduced(Parameters parameters, Recipe recipe) {
        long numbers = 0;
        for (QuantizerSite site : parameters.quantizers()) {
            long down = (site.role() == Role.WEIGHT ? site.weight().shape().size(0) : 0) + Scaling.BLOCK - 1;
            long across = (site.role() == Role.WEIGHT ? site.weight().shape().size(1) : 0) + Scaling.BLOCK - 1;
            numbers += switch (recipe) {
                case DelayedScaling _ -> 1;
                case Float8CurrentScaling _ -> site.role() == Role.WEIGHT ? 1 : 0;
                default ->
                    site.role() == Role.WEIGHT ? filled(down / Scaling.BLOCK) * filled(across / Scaling.BLOCK) : 0;
            };
        }
        return Float.BYTES * numbers;
    }

    private static long filled(long blocks) {
        return (blocks + 3) / 4 * 4;
    }

    private record Moved(
            CollectiveBytes quantized,
            CollectiveBytes sixteenBits,
            long expected,
            long whole,
            long reduced,
            long held) {}

    private static Moved moved(Rank rank, Recipe recipe) {
        ModelPlan plan = new ModelPlan();
        Layer layers = Sequential.of(
                GROUPS, i -> new LayerNormMlp(MlpConfig.gelu(HIDDEN).withInner(4 * HIDDEN), plan.group("layers." + i)));
        try (FullySharded strategy =
                        FullySharded.allocate(plan, DType.BFLOAT16, SEED, ZeroStage.THREE, rank.communicator());
                AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(rank.device())) {
            strategy.follow(pass);
            Quantizers quantizers = Quantizers.allocate(strategy.parameters(), recipe);
            strategy.reduceAmax(quantizers);
            CollectiveBytes[] bytes = new CollectiveBytes[4];
            long[] held = new long[4];
            for (int step = 0; step < 4; step++) {
                if (step < 3) {
                    pass.autocast(quantizers);
                } else {
                    pass.noAutocast();
                }
                strategy.takeBytes();
                pass.begin();
                strategy.lastMicroBatch();
                layers.backward(layers.forward(input(pass, step), pass), pass);
                strategy.sumGradients();
                optimizer.step(1e-3f);
                bytes[step] = strategy.takeBytes();
                held[step] = rank.device().peakHeldBytes();
            }
            assertEquals(held[1], held[2], "nothing is allocated from the second step on");
            assertTrue(strategy.explain().contains("those of products in eight bits"), strategy::explain);
            List<FlatGroup> groups = strategy.parameters().access().groups();
            FlatGroup group = groups.getFirst();
            assertTrue(products(group) > 0.99 * elements(group));
            // Forward leaves the last two groups where backward begins, and each step gathers anew.
            int gathers = GROUPS + GROUPS - 2;
            return new Moved(
                    bytes[2],
                    bytes[3],
                    gathers * quantized(group),
                    gathers * 2 * elements(group),
                    reduced(strategy.parameters(), recipe),
                    quantizers.byteSize());
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"DELAYED", "CURRENT", "BLOCKS"})
    void weightsOfProductsTravelAsBytes(Case one) {
        DevicesNeeded.assume(3);
        for (Moved moved : Ranks.local(3).run(rank -> moved(rank, one.recipe))) {
            assertEquals(moved.expected, moved.quantized.allGather(), "bytes of weights");
            assertEquals(moved.whole, moved.sixteenBits.allGather(), "bytes of weights without a recipe");
            assertTrue(moved.quantized.allGather() < 0.51 * moved.sixteenBits.allGather());
            assertEquals(moved.reduced, moved.quantized.allReduce(), "bytes of magnitudes");
            assertTrue(moved.held < 256 << 10, () -> "no rank keeps weights in eight bits: " + moved.held);
        }
    }

    /** Ranks that gather in turns what is read in either form: the tied weight is the embedding's, too. */
    @Test
    void aTiedWeightIsGatheredInItsOwnType() {
        DevicesNeeded.assume(2);
        List<List<float[]>> ofTwo = Ranks.local(2).run(rank -> {
            ModelPlan plan = new ModelPlan();
            Tied tied = new Tied(plan);
            try (FullySharded strategy =
                            FullySharded.allocate(plan, DType.BFLOAT16, 3, ZeroStage.THREE, rank.communicator());
                    Pass pass = Pass.training(rank.device())) {
                Quantizers quantizers = Quantizers.allocate(strategy.parameters(), Float8CurrentScaling.standard());
                strategy.follow(pass);
                strategy.reduceAmax(quantizers);
                return List.of(tied.logits(quantizers, pass));
            }
        });
        ModelPlan plan = new ModelPlan();
        Tied tied = new Tied(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Pass pass = Pass.training(device)) {
            Quantizers quantizers = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
            float[] expected = tied.logits(quantizers, pass);
            for (List<float[]> actual : ofTwo) {
                assertArrayEquals(expected, actual.getFirst());
            }
        }
    }

    /** A linear layer between an embedding and one that is tied to it. */
    private static final class Tied {
        private final Embedding embedding;
        private final Linear middle;
        private final Linear last;

        Tied(ModelPlan plan) {
            embedding = new Embedding(48, 64, Initializer.normal(1), plan.group("embedding"));
            middle = new Linear(64, 64, Initializer.normal(0.1f), plan.group("middle"));
            last = Linear.tied(embedding.weight(), plan.group("last"));
        }

        float[] logits(Quantizers quantizers, Pass pass) {
            pass.autocast(quantizers);
            pass.begin();
            Tensor ids = pass.scope().tensor(DType.INT32, 16);
            int[] values = new int[16];
            Arrays.setAll(values, i -> i * 3);
            ids.set(pass.stream(), values);
            Tensor logits = last.forward(middle.forward(embedding.forward(ids, pass), pass), pass);
            float[] read = logits.toFloats(pass.stream());
            embedding.backward(middle.backward(last.backward(logits, pass), pass), pass);
            return read;
        }
    }
}
