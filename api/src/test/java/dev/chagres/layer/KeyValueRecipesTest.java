package dev.chagres.layer;

import static dev.chagres.parallel.ContextParallelTest.close;
import static dev.chagres.parallel.ContextParallelTest.joined;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Inside;
import dev.chagres.launch.Ranks;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.ZeroStage;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.SplittableRandom;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Cross-attention whose products are in eight bits: of ranks, and with weights that have nothing but eight bits. */
@Tag("L0")
@Tag("L2")
class KeyValueRecipesTest {
    private static final int HIDDEN = 128;
    private static final int MEMORY = 64;
    private static final int SOURCES = 32;
    private static final int TARGETS = 64;
    private static final int STEPS = 2;

    private record Gradient(float[] values, @Nullable ParameterSplit split) {}

    private record Result(float[] y, float[] dx, float[] dm, Map<String, Gradient> gradients) {}

    static Stream<Recipe> recipes() {
        return Stream.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
    }

    private static float[] drawn(int count, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return values;
    }

    private static Tensor own(Scope scope, TensorParallel ranks, int rows, int columns, long seed) {
        Tensor whole = scope.tensor(DType.BFLOAT16, rows, columns);
        whole.set(scope.stream(), drawn(rows * columns, seed));
        if (!ranks.isSequenceParallel()) {
            return whole;
        }
        long part = rows / ranks.size();
        return scope.view(whole, ranks.rank() * part * columns, part, columns);
    }

    private static final class Model {
        private final SharedInput memory = new SharedInput("memory");
        private final CrossAttention layer;
        private final ModelPlan plan;

        Model(ModelPlan plan) {
            this.plan = plan;
            AttentionConfig heads =
                    AttentionConfig.of(8, 16, AttentionMask.none()).withKeyHeads(4);
            layer = new CrossAttention(
                    CrossAttentionConfig.of(HIDDEN, heads)
                            .withMemoryColumns(MEMORY)
                            .withInitializer(Initializer.normal(0.2f)),
                    memory,
                    plan.group("cross"));
        }

        Result step(Parameters parameters, Pass pass) {
            TensorParallel ranks = plan.tensorParallel();
            pass.begin();
            Scope scope = pass.scope();
            pass.sequences(Sequences.packed(scope, 20, 1, 43).withKeys(Sequences.packed(scope, 9, 16, 7)));
            Tensor m = own(scope, ranks, SOURCES, MEMORY, 1);
            Tensor x = own(scope, ranks, TARGETS, HIDDEN, 2);
            Inside.requireGradient(m, true);
            Inside.requireGradient(x, true);
            memory.forward(m, pass);
            float[] y = layer.forward(x, pass).toFloats(pass.stream());
            float[] dx =
                    layer.backward(own(scope, ranks, TARGETS, HIDDEN, 3), pass).toFloats(pass.stream());
            float[] dm = memory.backward(pass).toFloats(pass.stream());
            parameters.completeGradients();
            Map<String, Gradient> gradients = new LinkedHashMap<>();
            for (Parameter parameter : parameters.all()) {
                if (!parameter.isFrozen()) {
                    gradients.put(
                            parameter.name(),
                            new Gradient(parameter.gradient().toFloats(pass.stream()), parameter.split()));
                }
            }
            return new Result(y, dx, dm, gradients);
        }

        /** Without a recipe products are computed in 16 bits. */
        Result run(Device device, Parameters parameters, @Nullable Recipe recipe) {
            try (Quantizers quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
                    Pass pass = Pass.training(device)) {
                if (quantizers != null) {
                    pass.autocast(quantizers);
                }
                Result last = step(parameters, pass);
                for (int i = 1; i < STEPS; i++) {
                    parameters.nextStep();
                    last = step(parameters, pass);
                }
                return last;
            }
        }
    }

    private static Result whole(@Nullable Recipe recipe) {
        Model model = new Model(new ModelPlan());
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, model.plan, DType.BFLOAT16, 5)) {
            return model.run(device, parameters, recipe);
        }
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void sequenceParallelRanks(Recipe recipe) {
        DevicesNeeded.assume(2);
        List<Result> parts = Ranks.local(2).run(rank -> {
            Model model = new Model(
                    new ModelPlan(TensorParallel.of(rank.communicator()).withSequenceParallel()));
            try (Parameters parameters = Parameters.allocate(rank.device(), model.plan, DType.BFLOAT16, 5)) {
                return model.run(rank.device(), parameters, recipe);
            }
        });
        Result exact = whole(null);
        Result one = whole(recipe);
        near(exact.y, one.y, joined(parts.stream().map(Result::y).toList()), "y");
        near(exact.dx, one.dx, joined(parts.stream().map(Result::dx).toList()), "dx");
        near(exact.dm, one.dm, joined(parts.stream().map(Result::dm).toList()), "dm");
        for (Result part : parts) {
            part.gradients.forEach((name, gradient) -> {
                if (!name.endsWith("key_value.bias")) { // That of keys is 0 but for rounding.
                    near(own(exact, name, gradient), own(one, name, gradient), gradient.values, name);
                }
            });
        }
    }

    private static float[] own(Result whole, String name, Gradient part) {
        float[] all = Objects.requireNonNull(whole.gradients.get(name)).values;
        float[] own = new float[part.values.length];
        for (int e = 0; e < own.length; e++) {
            own[e] = all[part.split == null ? e : Math.toIntExact(part.split.element(e))];
        }
        return own;
    }

    /**
     * Ranks are about as far from products in 16 bits as one rank is: a rank's part of a weight has a scale of its own with some recipes, and
     * so is rounded otherwise.
     */
    private static void near(float[] exact, float[] one, float[] ranks, String what) {
        double expected = distance(exact, one);
        double actual = distance(exact, ranks);
        assertTrue(actual < 1.5 * expected + 1e-3, () -> what + ": one rank " + expected + ", ranks " + actual);
    }

    /** Returns ‖a − b‖ / ‖a‖. */
    private static double distance(float[] a, float[] b) {
        assertEquals(a.length, b.length);
        double distance = 0;
        double norm = 0;
        for (int i = 0; i < a.length; i++) {
            distance += Math.pow(a[i] - b[i], 2);
            norm += Math.pow(a[i], 2);
        }
        return Math.sqrt(distance / norm);
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void shardedRanks(Recipe recipe) {
        DevicesNeeded.assume(2);
        List<Result> results = Ranks.local(2).run(rank -> {
            Model model = new Model(new ModelPlan());
            try (FullySharded strategy =
                            FullySharded.allocate(model.plan, DType.BFLOAT16, 5, ZeroStage.THREE, rank.communicator());
                    Quantizers quantizers = Quantizers.allocate(strategy.parameters(), recipe);
                    Pass pass = Pass.training(rank.device())) {
                strategy.follow(pass);
                pass.autocast(quantizers);
                strategy.reduceAmax(quantizers);
                List<float[]> both = new ArrayList<>();
                for (int i = 0; i < STEPS; i++) {
                    pass.begin();
                    Scope scope = pass.scope();
                    pass.sequences(Sequences.packed(scope, 20, 1, 43).withKeys(Sequences.packed(scope, 9, 16, 7)));
                    Tensor m = own(scope, TensorParallel.none(), SOURCES, MEMORY, 1);
                    Tensor x = own(scope, TensorParallel.none(), TARGETS, HIDDEN, 2);
                    Inside.requireGradient(m, true);
                    Inside.requireGradient(x, true);
                    strategy.lastMicroBatch();
                    model.memory.forward(m, pass);
                    both.clear();
                    both.add(model.layer.forward(x, pass).toFloats(pass.stream()));
                    both.add(model.layer
                            .backward(own(scope, TensorParallel.none(), TARGETS, HIDDEN, 3), pass)
                            .toFloats(pass.stream()));
                    both.add(model.memory.backward(pass).toFloats(pass.stream()));
                    strategy.sumGradients();
                    strategy.parameters().nextStep();
                }
                return new Result(both.get(0), both.get(1), both.get(2), Map.of());
            }
        });
        Result expected = whole(recipe);
        for (Result result : results) {
            close(expected.y, result.y, 1e-6, "y");
            close(expected.dx, result.dx, 1e-6, "dx");
            close(expected.dm, result.dm, 1e-6, "dm");
        }
    }

    private static float[] evaluated(Device device, Recipe recipe, WeightStorage storage) {
        Model model = new Model(new ModelPlan());
        model.plan.freeze();
        try (Parameters parameters = Parameters.allocate(device, model.plan, DType.BFLOAT16, 5, storage);
                Quantizers quantizers = Quantizers.allocate(parameters, recipe);
                Pass pass = Pass.evaluation(device)) {
            boolean held = parameters.get("cross.key_value.weight").isQuantizedOnly();
            assertEquals(storage == WeightStorage.QUANTIZED_ONLY, held);
            pass.autocast(quantizers);
            pass.begin();
            Scope scope = pass.scope();
            pass.sequences(Sequences.packed(scope, 20, 1, 43).withKeys(Sequences.packed(scope, 9, 16, 7)));
            model.memory.forward(own(scope, TensorParallel.none(), SOURCES, MEMORY, 1), pass);
            return model.layer
                    .forward(own(scope, TensorParallel.none(), TARGETS, HIDDEN, 2), pass)
                    .toFloats(pass.stream());
        }
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void weightsOfNothingButEightBits(Recipe recipe) {
        try (Device device = Device.open()) {
            assertArrayEquals(
                    evaluated(device, recipe, WeightStorage.QUANTIZED),
                    evaluated(device, recipe, WeightStorage.QUANTIZED_ONLY));
        }
    }
}
