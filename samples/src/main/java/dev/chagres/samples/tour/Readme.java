package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Pass;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;

/** The README's example; a test holds both together. */
final class Readme {
    private Readme() {}

    static void run() {
        // @start region="readme"
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(
                TransformerLayerConfig.encoder(256, AttentionConfig.of(4, 64, AttentionMask.none())), plan);

        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                Pass pass = Pass.training(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 20, 33, 11)); // three, without padding
            Tensor x = pass.scope().tensor(DType.BFLOAT16, 64, 256);
            float[] values = new float[64 * 256];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i);
            }
            x.set(device.stream(), values);

            Tensor y = layer.forward(x, pass);
            Tensor dx = layer.backward(y, pass); // as if the loss were the sum of y^2 / 2
            System.out.println(device.name() + ": " + parameters.count() + " parameters, gradient " + dx);
        }
        // @end
    }
}
