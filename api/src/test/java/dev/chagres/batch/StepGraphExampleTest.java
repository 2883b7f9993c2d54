package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The example of docs/step-graphs.md and of {@link StepGraph}. */
@Tag("L0")
@Tag("L1")
class StepGraphExampleTest {
    private static final int VOCABULARY = 1024;
    private static final int HIDDEN = 32;

    private final ModelPlan plan = new ModelPlan();
    private final Embedding embedding =
            new Embedding(VOCABULARY, HIDDEN, Initializer.normal(1), plan.group("embedding"));
    private final TransformerLayer layer = new TransformerLayer(
            TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none())),
            plan.group("layer"));
    private final Linear head = new Linear(HIDDEN, VOCABULARY, Initializer.normal(0.02f), plan.group("head"));
    private final Sequential model = new Sequential("model", layer, head);
    private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);

    @Test
    void trainsOnPackedBatches() throws InterruptedException {
        int[] lengths = new int[240];
        Arrays.setAll(lengths, i -> 20 + i % 13);
        TokenSequences sequences = NumberedSequences.of(lengths);
        List<Double> seen = new ArrayList<>();
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            // @start region="stepGraph"
            float rate = 3e-3f; // a field where it changes
            BatchShape shape = new BatchShape(BatchLayout.PACKED, 128, 32, 2); // 128 tokens a step, in 2 micro-batches
            Tensor first = parameters.scope().tensor(DType.FLOAT32, 1); // lives longer than the pass
            List<Tensor> losses = List.of(first, parameters.scope().like(first));
            StepGraph.Step step = inputs -> { // all that a step enqueues
                for (int i = 0; i < inputs.size(); i++) {
                    ModelInput input = inputs.get(i);
                    pass.begin();
                    pass.sequences(input.sequences());
                    Tensor logits = model.forward(embedding.forward(input.ids(), pass), pass);
                    losses.get(i).copyFrom(pass.stream(), crossEntropy.forward(logits, input.labels(), pass));
                    Tensor dlogits = crossEntropy.backward(1, input.deviceShare(), pass);
                    embedding.backward(model.backward(dlogits, pass), pass);
                }
                norm.compute();
                optimizer.step(rate, norm); // the rate of a step that is enqueued one by one
            };
            try (BatchSource source = new BatchSource(new SequencePacker(shape, sequences), 2);
                    UploadRing uploads = UploadRing.padded(device, shape, 2, 0); // 0: the token that pads
                    StepGraph graph = new StepGraph(uploads, shape, pass, 8, step)) { // at most 8 buckets at a time
                for (Batch batch = source.take(); batch != null; batch = source.take()) {
                    uploads.upload(batch);
                    source.recycle(batch); // it may be filled again
                    optimizer.rate(rate); // of a step that is replayed
                    double loss = 0;
                    List<ModelInput> done = graph.step();
                    for (int i = 0; i < done.size(); i++) {
                        loss += done.get(i).share() * losses.get(i).toFloats(pass.stream())[0]; // waits for the step
                    }
                    seen.add(loss); // a list of the program's own
                }
                System.out.println(graph.explain());
                // @end
                assertEquals(seen.size(), graph.replayed() + graph.enqueued());
                assertTrue(graph.replayed() > graph.enqueued(), graph.explain());
            }
        }
        assertTrue(seen.getLast() < 0.9 * seen.getFirst(), seen::toString);
    }
}
