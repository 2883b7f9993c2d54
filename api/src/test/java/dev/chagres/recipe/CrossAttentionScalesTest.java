package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttention;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Keys and values of cross-attention come from one product, as in TE: weight, memory and gradient have one scale each. */
@Tag("L0")
@Tag("L1")
class CrossAttentionScalesTest {
    private static final int SIZE = 32;
    private static final int TOKENS = 16;
    private static final float MOST_OF_KEYS = 0.25f;
    private static final float MOST_OF_VALUES = 2;
    private static final float MOST_OF_MEMORY = 4;

    @Test
    void keysAndValuesShareTheirScales() {
        ModelPlan plan = new ModelPlan();
        SharedInput memory = new SharedInput("memory");
        AttentionConfig heads = AttentionConfig.of(2, 16, AttentionMask.none());
        CrossAttention layer = new CrossAttention(CrossAttentionConfig.of(SIZE, heads), memory, plan.group("cross"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            float[] rows = new float[2 * SIZE * SIZE];
            Arrays.fill(rows, 0, SIZE * SIZE, MOST_OF_KEYS);
            Arrays.fill(rows, SIZE * SIZE, rows.length, MOST_OF_VALUES);
            parameters.get("cross.key_value.weight").weight().set(device.stream(), rows);
            parameters.changed();
            pass.begin(Sequences.packed(scope, TOKENS).withKeys(Sequences.packed(scope, TOKENS)));
            pass.autocast(quantizers);
            memory.forward(filled(scope, MOST_OF_MEMORY), pass);
            layer.forward(filled(scope, 1), pass);
            layer.backward(filled(scope, 1), pass);
            memory.backward(pass);
            parameters.nextStep();

            Map<String, Tensor> state = quantizers.state().tensors();
            assertEquals(
                    List.of(
                            "cross.key_value.input.scale",
                            "cross.key_value.output_gradient.scale",
                            "cross.key_value.weight.scale",
                            "cross.projection.input.scale",
                            "cross.projection.output_gradient.scale",
                            "cross.projection.weight.scale",
                            "cross.query.input.scale",
                            "cross.query.output_gradient.scale",
                            "cross.query.weight.scale"),
                    state.keySet().stream()
                            .filter(name -> name.startsWith("cross.") && name.endsWith(".scale"))
                            .sorted()
                            .toList());
            float largest = 448;
            assertArrayEquals(
                    new float[] {largest / MOST_OF_VALUES},
                    state.get("cross.key_value.weight.scale").toFloats(device.stream()));
            assertArrayEquals(
                    new float[] {largest / MOST_OF_MEMORY},
                    state.get("cross.key_value.input.scale").toFloats(device.stream()));
        }
    }

    private static Tensor filled(Scope scope, float value) {
        float[] values = new float[TOKENS * SIZE];
        Arrays.fill(values, value);
        Tensor tensor = scope.tensor(DType.BFLOAT16, TOKENS, SIZE);
        tensor.set(scope.stream(), values);
        return tensor;
    }
}
