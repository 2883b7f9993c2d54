package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.batch.ModelInput;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.Pass;
import dev.chagres.layer.Sequential;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;

/** Embedding, encoder layers, norm and tied decoder, of the sizes of ESM-2 8M. */
final class EncoderModel implements AutoCloseable {
    static final int CONTEXT = 1_024;
    static final int VOCABULARY = 64;

    private static final int LAYERS = 6;
    private static final int HIDDEN = 320;
    private static final int HEADS = 20;
    private static final Initializer WEIGHTS = Initializer.normal(0.02f);

    private final Embedding embedding;
    private final Sequential layers;
    private final LayerNorm norm;
    private final Linear decoder;
    private final CrossEntropy crossEntropy;
    private final Parameters parameters;
    private final dev.chagres.Scope scope;

    EncoderModel(Device device) {
        ModelPlan plan = new ModelPlan();
        embedding = new Embedding(VOCABULARY, HIDDEN, WEIGHTS, plan.group("embedding"));
        AttentionConfig attention = AttentionConfig.of(HEADS, HIDDEN / HEADS, AttentionMask.none());
        TransformerLayerConfig config = TransformerLayerConfig.encoder(HIDDEN, attention);
        layers = Sequential.of(LAYERS, i -> new TransformerLayer(config, plan.group("layers." + i)));
        norm = new LayerNorm(NormConfig.layerNorm(HIDDEN), plan.group("norm"));
        decoder = Linear.tied(embedding.weight(), plan.group("head"));
        crossEntropy = new CrossEntropy(VOCABULARY);
        scope = device.openScope();
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, CONTEXT, HIDDEN / HEADS);
        layers.layers().forEach(one -> ((TransformerLayer) one).rotate(rotary));
        parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
    }

    Parameters parameters() {
        return parameters;
    }

    /** Enqueues forward and backward of a micro-batch, and returns its loss, FLOAT32 [1]. */
    Tensor forwardAndBackward(ModelInput input, Pass pass) {
        pass.sequences(input.sequences());
        Tensor x = layers.forward(embedding.forward(input.ids(), pass), pass);
        Tensor loss = crossEntropy.forward(decoder.forward(norm.forward(x, pass), pass), input.labels(), pass);
        Tensor gradient = norm.backward(decoder.backward(crossEntropy.backward(1, pass), pass), pass);
        layers.backward(gradient, gradient, pass);
        embedding.backward(gradient, pass);
        return loss;
    }

    @Override
    public void close() {
        parameters.close();
        scope.close();
    }
}
