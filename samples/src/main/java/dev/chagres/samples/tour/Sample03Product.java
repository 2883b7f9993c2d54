package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;

/** Multiplies matrices, {@code y = x W^T + b}, in BFLOAT16, and checks a row. */
final class Sample03Product {
    private static final int TOKENS = 64;
    private static final int INPUTS = 128;
    private static final int OUTPUTS = 256;

    private Sample03Product() {}

    static void run() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(INPUTS, OUTPUTS, Initializer.normal(0.1f), plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 7);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            float[] ones = new float[TOKENS * INPUTS];
            java.util.Arrays.fill(ones, 1);
            Tensor x = pass.scope().tensor(DType.BFLOAT16, TOKENS, INPUTS);
            x.set(device.stream(), ones);
            float[] y = linear.forward(x, pass).toFloats(device.stream());

            // With x = 1 each output is the sum of a weight row.
            float[] weight = linear.weight().weight().toFloats(device.stream());
            double sum = 0;
            for (int i = 0; i < INPUTS; i++) {
                sum += weight[i];
            }
            double first = Tour.near("y[0, 0]", sum, y[0], 1.0 / 128);
            System.out.printf("3 product: y[0, 0] = %.4f, the sum of a row of %d weights%n", first, parameters.count());
        }
    }
}
