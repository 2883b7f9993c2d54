package dev.chagres.parallel;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that split the heads of an attention in eight bits compute what one rank does. */
@Tag("L0")
@Tag("L2")
class RankedAttentionTest {
    private static final int TOKENS = 64;
    private static final int HIDDEN = 256;

    /** Output and gradient of the input of the second step, whose scales the first has found. */
    private record Result(float[] y, float[] dx) {}

    private static Result train(Device device, ModelPlan plan, AttentionPrecision precision) {
        MultiheadAttention layer = new MultiheadAttention(
                NormConfig.layerNorm(HIDDEN),
                AttentionConfig.of(2, 128, AttentionMask.causal()),
                Initializer.normal(0.06f),
                plan);
        try (Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Scope inputs = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.autocast(
                    Quantizers.allocate(parameters, DelayedScaling.standard().withAttention(precision)));
            Sequences sequences = Sequences.dense(inputs, QkvFormat.BSHD, 2, TOKENS / 2);
            Tensor x = drawn(inputs, 1, device);
            Tensor dy = drawn(inputs, 2, device);
            Result result = new Result(new float[0], new float[0]);
            for (int step = 0; step < 2; step++) {
                pass.begin(sequences);
                float[] y = layer.forward(x, pass).toFloats(device.stream());
                result = new Result(y, layer.backward(dy, pass).toFloats(device.stream()));
                parameters.nextStep();
            }
            return result;
        }
    }

    private static Tensor drawn(Scope inputs, long key, Device device) {
        float[] values = new float[TOKENS * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) CounterRandom.normal(key, i);
        }
        Tensor tensor = inputs.tensor(DType.BFLOAT16, TOKENS, HIDDEN);
        tensor.set(device.stream(), values);
        return tensor;
    }

    private static double distance(float[] expected, float[] found) {
        double sum = 0;
        double norm = 0;
        for (int i = 0; i < expected.length; i++) {
            sum += Math.pow(expected[i] - found[i], 2);
            norm += Math.pow(expected[i], 2);
        }
        return Math.sqrt(sum / norm);
    }

    @ParameterizedTest
    @EnumSource(
            value = AttentionPrecision.class,
            names = {"FP8_DPA", "FP8_MHA"})
    void ranksSplitHeads(AttentionPrecision precision) {
        DevicesNeeded.assume(2);
        Result whole;
        Result plain;
        try (Device device = Device.open()) {
            whole = train(device, new ModelPlan(), precision);
            plain = train(device, new ModelPlan(), AttentionPrecision.HIGH_PRECISION);
        }
        assertFalse(Arrays.equals(whole.y, plain.y), "attention was in 16 bits");
        List<Result> parts = Ranks.local(2)
                .run(rank -> train(rank.device(), new ModelPlan(TensorParallel.of(rank.communicator())), precision));
        for (Result part : parts) { // Scales are those of its own heads: each number is rounded anew.
            assertTrue(distance(whole.y, part.y) < 1e-1, () -> "y: off by " + distance(whole.y, part.y));
            assertTrue(distance(whole.dx, part.dx) < 2e-1, () -> "dx: off by " + distance(whole.dx, part.dx));
            assertFalse(Arrays.equals(plain.y, part.y));
        }
    }
}
