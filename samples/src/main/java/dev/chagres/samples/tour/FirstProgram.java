package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Random;

/** Learns to continue sequences that repeat their first four numbers: 7, 3, 9, 1, 7, 3, … */
final class FirstProgram {
    private final ModelPlan plan = new ModelPlan(); // each group of parameters lies side by side in memory
    private final Initializer normal = Initializer.normal(0.5f);
    private final TransformerLayerConfig config =
            TransformerLayerConfig.encoder(64, AttentionConfig.of(4, 16, AttentionMask.causal()));
    private final Embedding embedding = new Embedding(32, 64, normal, plan.group("embedding"));
    private final Sequential layers = Sequential.of(2, i -> new TransformerLayer(config, plan.group("layers." + i)));
    private final ModelPlan top = plan.group("top");
    private final LayerNorm norm = new LayerNorm(NormConfig.layerNorm(64), top.child("norm"));
    private final Linear head = new Linear(64, 32, normal, top.child("head"));
    private final Sequential model = new Sequential("model", layers, norm, head);
    private final CrossEntropy crossEntropy = new CrossEntropy(32);
    private final Random random = new Random(1);

    public static void main(String... args) {
        float loss = new FirstProgram().train(Path.of("first.safetensors"));
        System.out.printf(Locale.ROOT, "new sequences: loss %.3f%n", loss);
    }

    /** Trains, saves the weights to {@code file}, and returns the loss of sequences that were not trained on. */
    float train(Path file) {
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass training = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            RotaryEmbedding rotary = RotaryEmbedding.of(parameters.scope(), 64, 16); // 64 positions, heads of 16
            layers.layers().forEach(layer -> ((TransformerLayer) layer).rotate(rotary));
            training.autocast(Quantizers.allocate(parameters, Float8CurrentScaling.standard())); // products in FP8
            GradientNorm gradientNorm = new GradientNorm(parameters, 1); // clips to 1
            for (int step = 1; step <= 200; step++) {
                Tensor loss = loss(training);
                embedding.backward(model.backward(crossEntropy.backward(training), training), training);
                gradientNorm.compute();
                optimizer.step(3e-3f, gradientNorm);
                if (step % 50 == 0) {
                    System.out.printf(Locale.ROOT, "step %d: loss %.3f%n", step, loss.toFloats(device.stream())[0]);
                }
            }
            Safetensors.save(file, parameters.state(), device.stream(), Map.of());
            return loss(evaluation).toFloats(device.stream())[0]; // in BF16: autocast holds for one pass
        }
    }

    /** Computes the mean loss of 128 new tokens: four sequences, packed without padding. */
    private Tensor loss(Pass pass) {
        int[] lengths = {20, 33, 11, 64};
        int[] numbers = new int[128];
        int[] next = new int[128];
        int token = 0;
        for (int length : lengths) {
            for (int i = 0; i < length; i++, token++) {
                numbers[token] = i < 4 ? random.nextInt(32) : numbers[token - 4];
                next[token] = i < 3 ? -100 : numbers[token - 3]; // -100: no label
            }
        }
        pass.begin(); // takes back the memory of the micro-batch before
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor ids = pass.scope().tensor(DType.INT32, 128);
        Tensor labels = pass.scope().like(ids);
        ids.set(pass.stream(), numbers);
        labels.set(pass.stream(), next);
        return crossEntropy.forward(model.forward(embedding.forward(ids, pass), pass), labels, pass);
    }
}
