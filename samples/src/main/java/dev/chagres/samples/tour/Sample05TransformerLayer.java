package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.SplittableRandom;

/**
 * Trains one TransformerLayer to answer with zeros: the loss {@code sum y^2 / 2} has the gradient y.
 *
 * <p>The pass is begun again each time: it hands out the same memory and the same Java objects.
 */
final class Sample05TransformerLayer {
    private static final int HIDDEN = 64;
    private static final int HEADS = 4;
    private static final int STEPS = 20;

    private Sample05TransformerLayer() {}

    static void run() {
        ModelPlan plan = new ModelPlan();
        AttentionConfig attention = AttentionConfig.of(HEADS, HIDDEN / HEADS, AttentionMask.none());
        TransformerLayer layer = new TransformerLayer(TransformerLayerConfig.encoder(HIDDEN, attention), plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                AdamW optimizer = new AdamW(parameters, new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f));
                Scope inputs = device.openScope();
                Pass pass = Pass.training(device)) {
            layer.rotate(RotaryEmbedding.of(inputs, 64, HIDDEN / HEADS));
            GradientNorm norm = new GradientNorm(parameters, 1);
            Sequences sequences = Sequences.packed(inputs, 20, 33, 11);
            Tensor x = inputs.tensor(DType.BFLOAT16, sequences.tokens(), HIDDEN);
            x.set(device.stream(), normal((int) x.count()));

            double before = 0;
            double after = 0;
            for (int i = 1; i <= STEPS; i++) {
                pass.begin(sequences);
                Tensor y = layer.forward(x, pass);
                after = halfSquare(y.toFloats(device.stream()));
                before = i == 1 ? after : before;
                layer.backward(y, pass);
                norm.compute();
                optimizer.step(1e-2f, norm);
            }
            if (!(after < 0.9 * before)) {
                throw new IllegalStateException("loss: expected below 0.9 of " + before + ", got " + after);
            }
            System.out.printf("5 layer: loss %.1f fell to %.1f in %d steps%n", before, after, STEPS);
        }
    }

    private static float[] normal(int count) {
        SplittableRandom random = new SplittableRandom(3);
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return values;
    }

    private static double halfSquare(float[] values) {
        double sum = 0;
        for (float value : values) {
            sum += 0.5 * value * value;
        }
        return sum;
    }
}
