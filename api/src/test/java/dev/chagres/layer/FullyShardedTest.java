package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.State;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import dev.chagres.sharding.ZeroStage;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that share a model out compute what one rank computes that has all of it and accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class FullyShardedTest {
    private static final int STEPS = 20;
    private static final float RATE = 1e-3f;
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);

    /** What is different from a plain encoder, whose head is tied to its embedding. */
    enum Variant {
        PLAIN,
        DROPOUT,
        RECOMPUTED,
        FROZEN_BOTTOM;

        float dropout() {
            return this == DROPOUT ? 0.1f : 0;
        }

        UnaryOperator<Layer> wrapper() {
            return this == RECOMPUTED ? Recomputed::new : UnaryOperator.identity();
        }

        Consumer<ModelPlan> frozen() {
            return this == FROZEN_BOTTOM
                    ? plan -> plan.groups().get("layers.0").forEach(Parameter::freeze)
                    : plan -> {};
        }
    }

    /** A tensor of the state. */
    private record Saved(Shape shape, float[] values) {}

    private record Run(float[] losses, float[] norms, Map<String, Saved> first, Map<String, Saved> state) {}

    /** Sequences of a part of a step: unequal, and none for some. */
    private static int[] lengths(int part) {
        return switch (part % 4) {
            case 0 -> new int[] {7, 1, 12, 5};
            case 1 -> new int[] {3};
            case 2 -> new int[] {16, 2};
            default -> new int[] {};
        };
    }

    private static int[][] batch(int step, int part) {
        return SmallModel.batch(100L * step + part, lengths(part));
    }

    private static int labelled(int step, int part) {
        return (int)
                Arrays.stream(batch(step, part)[1]).filter(label -> label >= 0).count();
    }

    private static float part(SmallModel model, Pass pass, int step, int part, Tensor divisor) {
        int[] lengths = lengths(part);
        int[][] batch = batch(step, part);
        if (lengths.length == 0) {
            lengths = new int[] {1}; // a token without a label: its gradients are 0
            batch = new int[][] {{0}, {-100}};
        }
        pass.seed(5, step, part);
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor embedded = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        Tensor logits = model.head.forward(model.layers.forward(embedded, pass), pass);
        Tensor loss = model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), divisor, pass);
        float value = loss.toFloats(model.device.stream())[0];
        model.backward(pass);
        return value;
    }

    private static Map<String, Saved> saved(State state, Stream stream) {
        Map<String, Saved> all = new LinkedHashMap<>();
        state.tensors().forEach((name, tensor) -> all.put(name, new Saved(tensor.shape(), tensor.toFloats(stream))));
        return all;
    }

    private static Run oneRank(int parts, DType dtype, Variant variant) {
        try (Device device = Device.open();
                SmallModel model =
                        new SmallModel(device, dtype, variant.dropout(), variant.wrapper(), variant.frozen());
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Tensor divisor = scope.tensor(DType.INT32, 1);
            Map<String, Saved> first = saved(model.parameters.state(), stream);
            float[] losses = new float[STEPS];
            float[] norms = new float[STEPS];
            for (int step = 0; step < STEPS; step++) {
                int count = 0;
                for (int part = 0; part < parts; part++) {
                    count += labelled(step, part);
                }
                divisor.set(stream, count);
                for (int part = 0; part < parts; part++) {
                    if (lengths(part).length > 0) {
                        pass.begin();
                        losses[step] += part(model, pass, step, part, divisor);
                    }
                }
                norm.compute();
                norms[step] = norm.norm().toFloats(stream)[0];
                optimizer.step(RATE, norm);
            }
            State state = State.of(model.parameters.state(), optimizer.state());
            return new Run(losses, norms, first, saved(state, stream));
        }
    }

    private static Run rank(Rank rank, ZeroStage stage, int microBatches, DType dtype, Variant variant) {
        Device device = rank.device();
        Stream stream = device.stream();
        FullySharded[] made = new FullySharded[1];
        try (SmallModel model =
                        new SmallModel(device, dtype, variant.dropout(), variant.wrapper(), variant.frozen(), plan -> {
                            made[0] = FullySharded.allocate(plan, dtype, 7, stage, rank.communicator());
                            return made[0].parameters();
                        });
                FullySharded training = made[0];
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Pass pass = Pass.training(device);
                Scope scope = device.openScope()) {
            Map<String, Saved> first = state(training, optimizer, stream);
            first.keySet().removeIf(name -> name.contains(".exp_avg") || name.endsWith(".master"));
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Tensor labelled = scope.tensor(DType.INT32, 1);
            float[] losses = new float[STEPS];
            float[] norms = new float[STEPS];
            training.follow(pass);
            for (int step = 0; step < STEPS; step++) {
                int count = 0;
                for (int i = 0; i < microBatches; i++) {
                    count += labelled(step, i * rank.count() + rank.index());
                }
                labelled.set(stream, count);
                // @start region="sharded"
                training.sumOverRanks(labelled);
                for (int i = 0; i < microBatches; i++) {
                    int part = i * rank.count() + rank.index();
                    boolean idle = lengths(part).length == 0 && stage != ZeroStage.THREE;
                    if (!idle) {
                        pass.begin();
                        if (i == microBatches - 1) {
                            training.lastMicroBatch();
                        }
                        losses[step] += part(model, pass, step, part, labelled);
                    }
                }
                training.sumGradients();
                norm.compute();
                // @end
                norms[step] = norm.norm().toFloats(stream)[0];
                optimizer.step(RATE, norm);
            }
            return new Run(losses, norms, first, state(training, optimizer, stream));
        }
    }

    private static Map<String, Saved> state(FullySharded training, AdamW optimizer, Stream stream) {
        Map<String, Saved> all = new LinkedHashMap<>();
        training.gatherState(
                optimizer, (name, tensor) -> all.put(name, new Saved(tensor.shape(), tensor.toFloats(stream))));
        return all;
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, 1, 1, PLAIN",
        "ONE, 2, 1, DROPOUT",
        "ONE, 3, 2, PLAIN",
        "ONE, 4, 1, RECOMPUTED",
        "ONE, 8, 1, FROZEN_BOTTOM",
        "TWO, 1, 2, PLAIN",
        "TWO, 2, 2, DROPOUT",
        "TWO, 3, 1, FROZEN_BOTTOM",
        "TWO, 4, 1, PLAIN",
        "TWO, 8, 1, RECOMPUTED",
        "THREE, 1, 1, PLAIN",
        "THREE, 2, 1, PLAIN",
        "THREE, 2, 2, DROPOUT",
        "THREE, 3, 2, RECOMPUTED",
        "THREE, 4, 1, FROZEN_BOTTOM",
        "THREE, 8, 1, DROPOUT"
    })
    void ranksComputeWhatOneRankAccumulates(ZeroStage stage, int ranks, int microBatches, Variant variant) {
        Run expected = oneRank(ranks * microBatches, DType.FLOAT32, variant);
        var actual = Ranks.local(ranks).run(rank -> rank(rank, stage, microBatches, DType.FLOAT32, variant));
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            for (Run run : actual) {
                loss += run.losses[step];
                assertEquals(
                        expected.norms[step], run.norms[step], 1e-4 * expected.norms[step], "norm of step " + step);
            }
            assertEquals(expected.losses[step], loss, 1e-5 * expected.losses[step], "loss of step " + step);
        }
        assertTrue(expected.losses[STEPS - 1] < expected.losses[0]);
        for (Run run : actual) {
            compare(expected.first, run.first, 0);
            compare(expected.state, run.state, 1e-3);
            run.state.forEach((name, saved) ->
                    assertArrayEquals(actual.getFirst().state.get(name).values, saved.values, name + " on all ranks"));
        }
    }

    /** BF16 weights have FP32 masters, of which each rank keeps a part; rounding differs with the order of sums. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void mastersOfSixteenBitWeightsToo(ZeroStage stage) {
        Run expected = oneRank(3, DType.BFLOAT16, Variant.PLAIN);
        var actual = Ranks.local(3).run(rank -> rank(rank, stage, 1, DType.BFLOAT16, Variant.PLAIN));
        assertEquals(expected.state.keySet(), actual.getFirst().state.keySet());
        for (int step = 0; step < STEPS; step++) {
            float loss = 0;
            for (Run run : actual) {
                loss += run.losses[step];
            }
            assertEquals(expected.losses[step], loss, 1e-2 * expected.losses[step], "loss of step " + step);
        }
        for (Run run : actual) {
            compare(expected.first, run.first, 0);
            run.state.forEach((name, saved) -> {
                assertArrayEquals(actual.getFirst().state.get(name).values, saved.values, name + " on all ranks");
                Saved master = run.state.get(name + ".master");
                for (int i = 0; master != null && i < saved.values.length; i++) {
                    assertEquals(DType.toBfloat16(master.values[i]), DType.toBfloat16(saved.values[i]), name);
                }
            });
        }
    }

    /** Within {@code tolerance} of the largest element. */
    private static void compare(Map<String, Saved> expected, Map<String, Saved> actual, double tolerance) {
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, saved) -> {
            Saved other = actual.get(name);
            assertEquals(saved.shape, other.shape, name);
            double most = 0;
            for (float value : saved.values) {
                most = Math.max(most, Math.abs(value));
            }
            // The gradient of the keys' bias is 0, and Adam makes whole steps of what rounding leaves of it.
            boolean rounding = tolerance > 0 && name.endsWith("qkv.linear.bias");
            double allowed = rounding ? 2 * STEPS * RATE : tolerance * most;
            for (int i = 0; i < saved.values.length; i++) {
                assertEquals(saved.values[i], other.values[i], allowed, name + "[" + i + "]");
            }
        });
    }
}
