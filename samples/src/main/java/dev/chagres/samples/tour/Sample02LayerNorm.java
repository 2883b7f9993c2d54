package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.NormConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.SplittableRandom;

/** Normalizes rows through Transformer Engine and compares one of them with plain Java. */
final class Sample02LayerNorm {
    private static final int TOKENS = 32;
    private static final int HIDDEN = 256;
    private static final double EPSILON = 1e-5;

    private Sample02LayerNorm() {}

    static void run() {
        // A layer declares its parameters; then they get memory, all at once.
        ModelPlan plan = new ModelPlan();
        LayerNorm norm = new LayerNorm(NormConfig.layerNorm(HIDDEN), plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            float[] values = new float[TOKENS * HIDDEN];
            SplittableRandom random = new SplittableRandom(1);
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) (3 + 2 * random.nextGaussian());
            }
            Tensor x = pass.scope().tensor(DType.FLOAT32, TOKENS, HIDDEN);
            x.set(device.stream(), values);
            float[] y = norm.forward(x, pass).toFloats(device.stream());

            double mean = 0;
            double square = 0;
            for (int i = 0; i < HIDDEN; i++) {
                mean += values[i] / (double) HIDDEN;
                square += values[i] * (double) values[i] / HIDDEN;
            }
            double deviation = Math.sqrt(square - mean * mean + EPSILON);
            double first = Tour.near("y[0, 0]", (values[0] - mean) / deviation, y[0], 1e-4);
            System.out.printf(
                    "2 layernorm: y[0, 0] = %.6f, as plain Java says; %d parameters%n", first, parameters.count());
        }
    }
}
