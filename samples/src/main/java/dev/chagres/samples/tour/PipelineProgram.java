package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.pipeline.PipelinePlan;
import dev.chagres.pipeline.PipelineStage;
import dev.chagres.sharding.DataParallel;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Learns to count on, 5, 6, 7, …, on two ranks that have half of the layers each. */
final class PipelineProgram {
    private static final int WIDTH = 64;
    private static final int LAYERS = 4;
    private static final int MICRO_BATCHES = 4;

    private final ModelPlan plan = new ModelPlan(); // of the whole model, on each rank
    private final TransformerLayerConfig config =
            TransformerLayerConfig.encoder(WIDTH, AttentionConfig.of(4, 16, AttentionMask.causal()));
    private final Embedding embedding = new Embedding(32, WIDTH, Initializer.normal(0.5f), plan.group("embedding"));
    private final List<TransformerLayer> layers = new ArrayList<>();
    private final Linear head;
    private final CrossEntropy crossEntropy = new CrossEntropy(32);

    PipelineProgram() {
        for (int i = 0; i < LAYERS; i++) {
            layers.add(new TransformerLayer(config, plan.group("layers." + i)));
        }
        head = new Linear(WIDTH, 32, Initializer.normal(0.1f), plan.group("head"));
    }

    public static void main(String... args) {
        System.out.println(
                Ranks.local(2).run(rank -> new PipelineProgram().train(rank))); // the loss, from the last rank
    }

    /** What each rank does, on a thread of its own: trains, and returns its part of the loss of an evaluation. */
    float train(Rank rank) {
        int ranks = rank.communicator().ranks();
        PipelinePlan stages = PipelinePlan.of(plan, ranks, 1);
        for (int stage = 0; stage < ranks; stage++) {
            for (int i = stages.firstLayer(LAYERS, stage); i < stages.firstLayer(LAYERS, stage + 1); i++) {
                stages.place(stage, plan.group("layers." + i).parameters());
            }
        }
        stages.place(0, plan.group("embedding").parameters());
        stages.place(ranks - 1, plan.group("head").parameters());
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, ranks);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                Parameters parameters =
                        Parameters.allocate(rank.device(), stages.part(rank.index()), DType.FLOAT32, 42);
                PipelineParallel pipeline = PipelineParallel.of(stages, parameters, WIDTH, mesh);
                DataParallel copies = DataParallel.of(parameters, mesh.along(MeshDimension.REPLICATE));
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            GradientNorm norm = new GradientNorm(parameters, 1); // after the pipeline
            int first = stages.firstLayer(LAYERS, rank.index());
            int count = stages.firstLayer(LAYERS, rank.index() + 1) - first;
            Stage stage = new Stage(Sequential.of(count, i -> layers.get(first + i)), parameters);
            for (int step = 0; step < 60; step++) {
                stage.step = step;
                pipeline.run(stage, MICRO_BATCHES);
                copies.sumGradients(); // over copies of this rank's stage; here there is one
                norm.compute(); // over all stages
                optimizer.step(3e-3f, norm);
            }
            pipeline.evaluate(stage, MICRO_BATCHES); // the last step's numbers, with the weights after it
            return stage.loss;
        }
    }

    /** The layers of one rank; the first rank also has the embedding, the last one head and loss. */
    private final class Stage implements PipelineStage {
        private final Sequential own;
        private final Tensor labelled;
        private int step;
        private float loss;

        Stage(Sequential own, Parameters parameters) {
            this.own = own;
            labelled = parameters.scope().tensor(DType.INT32, 1); // the step's labelled tokens
            int sum = 0;
            for (int i = 0; i < MICRO_BATCHES; i++) {
                sum += length(i);
            }
            labelled.set(parameters.scope().stream(), sum);
        }

        @Override
        public long tokens(int microBatch) {
            return length(microBatch);
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            pass.sequences(Sequences.packed(pass.scope(), length(microBatch)));
            Tensor input = x != null ? x : embedding.forward(numbers(microBatch, 0, pass), pass);
            if (y != null) {
                own.forward(input, y, pass); // what the next stage reads
                return;
            }
            Tensor logits = head.forward(own.forward(input, pass), pass);
            Tensor part = crossEntropy.forward(logits, numbers(microBatch, 1, pass), labelled, pass);
            if (!pass.isTraining()) {
                loss += part.toFloats(pass.stream())[0]; // the parts of the micro-batches add up to the loss
            }
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            Tensor gradient = dy != null ? dy : head.backward(crossEntropy.backward(pass), pass);
            if (dx != null) {
                own.backward(gradient, dx, pass); // what the stage before reads
            } else {
                embedding.backward(own.backward(gradient, pass), pass);
            }
        }

        private int length(int microBatch) {
            return 16 + 8 * microBatch;
        }

        /** Returns the numbers of a micro-batch, plus {@code added}. */
        private Tensor numbers(int microBatch, int added, Pass pass) {
            int[] numbers = new int[length(microBatch)];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = (5 * step + microBatch + i + added) % 32;
            }
            Tensor tensor = pass.scope().tensor(DType.INT32, numbers.length);
            tensor.set(pass.stream(), numbers);
            return tensor;
        }
    }
}
