package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.stream.IntStream;

/** The README's example; a test holds both together. */
final class Readme {
    private Readme() {}

    static void run() {
        // @start region="readme"
        ModelPlan plan = new ModelPlan();
        Initializer normal = Initializer.normal(0.5f);
        Embedding embedding = new Embedding(32, 64, normal, plan.group("embedding"));
        TransformerLayerConfig config =
                TransformerLayerConfig.encoder(64, AttentionConfig.of(4, 16, AttentionMask.causal()));
        TransformerLayer layer = new TransformerLayer(config, plan.group("layer"));
        Sequential model = new Sequential("model", layer, new Linear(64, 32, normal, plan.group("head")));
        CrossEntropy crossEntropy = new CrossEntropy(32);

        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            for (int step = 0; step <= 40; step++) {
                pass.begin();
                pass.sequences(Sequences.packed(pass.scope(), 20, 33, 11)); // three, without padding
                Tensor ids = pass.scope().tensor(DType.INT32, 64);
                Tensor labels = pass.scope().like(ids); // here the token itself, plus one
                ids.set(device.stream(), IntStream.range(0, 64).map(i -> i % 31).toArray());
                labels.set(
                        device.stream(),
                        IntStream.range(0, 64).map(i -> i % 31 + 1).toArray());

                Tensor logits = model.forward(embedding.forward(ids, pass), pass);
                Tensor loss = crossEntropy.forward(logits, labels, pass);
                embedding.backward(model.backward(crossEntropy.backward(pass), pass), pass);
                optimizer.step(1e-3f);
                if (step % 10 == 0) {
                    System.out.printf("step %d: loss %.3f%n", step, loss.toFloats(device.stream())[0]);
                }
            }
        }
        // @end
    }
}
