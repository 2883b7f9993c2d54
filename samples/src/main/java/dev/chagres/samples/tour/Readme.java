package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Dropout;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Accumulation;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;

/** The README's example; a test holds both together. */
final class Readme {
    private Readme() {}

    static void run(float[] values) {
        // @start region="readme"
        AttentionConfig attention = AttentionConfig.of(4, 64, AttentionMask.none(), Dropout.none());
        ParameterPlan plan = new ParameterPlan();
        TransformerLayer layer =
                new TransformerLayer(TransformerLayerConfig.encoder(256, attention, Dropout.none()), plan);

        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                Scope scope = device.openScope()) {
            Sequences sequences = Sequences.packed(scope, 20, 33, 11); // three, without padding
            Tensor x = scope.tensor(DType.BFLOAT16, sequences.tokens(), 256);
            x.set(device.stream(), values);

            TransformerLayer.Saved saved = layer.forward(x, sequences, scope);
            Tensor dx = layer.backward(saved.output(), saved, Accumulation.OVERWRITE, scope);
            System.out.println(device.name() + ": " + parameters.count() + " parameters, gradient " + dx);
        }
        // @end
    }
}
