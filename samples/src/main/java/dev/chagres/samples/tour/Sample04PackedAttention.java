package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.pass.Pass;
import java.util.Arrays;

/**
 * Attends within packed sequences of different lengths: no padding, and no token sees another sequence.
 *
 * <p>With equal keys all weights are equal, so each output is the mean of its own sequence's values.
 */
final class Sample04PackedAttention {
    private static final int HEADS = 2;
    private static final int HEAD_DIM = 16;

    private Sample04PackedAttention() {}

    static void run() {
        AttentionConfig config = AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.none());
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Pass pass = Pass.evaluation(device)) {
            // Three sequences of 5, 40 and 19 tokens: offsets 0, 5, 45, 64.
            Sequences sequences = Sequences.packed(scope, 5, 40, 19);
            pass.begin(sequences);
            int tokens = (int) sequences.tokens();
            float[] values = new float[tokens * HEADS * HEAD_DIM];
            for (int token = 0; token < tokens; token++) {
                Arrays.fill(values, token * HEADS * HEAD_DIM, (token + 1) * HEADS * HEAD_DIM, token % 8);
            }
            Tensor query = tensor(device, scope, tokens, new float[values.length]);
            Tensor key = tensor(device, scope, tokens, new float[values.length]);
            Tensor value = tensor(device, scope, tokens, values);
            float[] output = new DotProductAttention(config)
                    .forward(query, key, value, pass)
                    .toFloats(device.stream());

            // Tokens 0 to 4 hold 0, 1, 2, 3, 4: their mean is 2.
            double first = Tour.near("output[0]", 2, output[0], 1e-2);
            System.out.printf("4 attention: first sequence's mean is %.3f, over %s%n", first, sequences);
        }
    }

    private static Tensor tensor(Device device, Scope scope, int tokens, float[] values) {
        Tensor tensor = scope.tensor(DType.BFLOAT16, tokens, HEADS, HEAD_DIM);
        tensor.set(device.stream(), values);
        return tensor;
    }
}
