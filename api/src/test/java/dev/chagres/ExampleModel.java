package dev.chagres;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Sequential;

/** A model of two layers with everything that a step needs, for the examples. */
final class ExampleModel implements AutoCloseable {
    private static final int HIDDEN = 64;
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(4, 16, AttentionMask.none()));

    private final ModelPlan plan = new ModelPlan();
    final Layer layers = Sequential.of(2, i -> new TransformerLayer(ENCODER, plan.group("layers." + i)));
    final Parameters parameters;
    final Sequences sequences;
    final Tensor x;
    private final Scope inputs;

    ExampleModel(Device device) {
        parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
        inputs = device.openScope();
        sequences = Sequences.packed(inputs, 5, 3);
        x = inputs.tensor(DType.FLOAT32, 8, HIDDEN);
        float[] values = new float[8 * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(i);
        }
        x.set(device.stream(), values);
    }

    @Override
    public void close() {
        inputs.close();
        parameters.close();
    }
}
