package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;

/** Learns to count on, 5, 6, 7, …, on two ranks that shard the model. */
final class RanksProgram {
    private final ModelPlan plan = new ModelPlan();
    private final AttentionConfig attention =
            AttentionConfig.of(4, 16, AttentionMask.causal()).withDropout(Dropout.of(0.1f));
    private final TransformerLayerConfig config =
            TransformerLayerConfig.encoder(64, attention).withHiddenDropout(Dropout.of(0.1f));
    private final Embedding embedding = new Embedding(32, 64, Initializer.normal(0.5f), plan.group("embedding"));
    private final TransformerLayer layer = new TransformerLayer(config, plan.group("layer"));
    private final Linear head = new Linear(64, 32, Initializer.normal(0.1f), plan.group("head"));
    private final Sequential model = new Sequential("model", layer, head);
    private final CrossEntropy crossEntropy = new CrossEntropy(32);

    public static void main(String... args) {
        System.out.println(Ranks.local(2).run(rank -> new RanksProgram().train(rank))); // a loss from each rank
    }

    /** What each rank does, on a thread of its own: trains, and returns the loss of an evaluation. */
    float train(Rank rank) {
        try (FullySharded strategy =
                        FullySharded.allocate(plan, DType.FLOAT32, 42, ZeroStage.THREE, rank.communicator());
                AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard());
                Pass training = Pass.training(rank.device());
                Pass evaluation = Pass.evaluation(rank.device())) {
            strategy.follow(training); // once, and before a layer runs
            strategy.follow(evaluation);
            GradientNorm norm = new GradientNorm(strategy.parameters(), 1);
            for (int step = 0; step < 60; step++) {
                training.begin();
                training.seed(7, step, rank.index()); // of dropout
                strategy.lastMicroBatch(); // the only one of this rank in this step
                loss(rank, step, strategy, training);
                embedding.backward(model.backward(crossEntropy.backward(training), training), training);
                strategy.sumGradients();
                norm.compute();
                optimizer.step(3e-3f, norm);
            }
            evaluation.begin(); // drops nothing
            Tensor loss = loss(rank, 60, strategy, evaluation);
            rank.communicator().allReduce(loss, loss, Reduction.SUM, evaluation.stream()); // of the ranks' parts
            return loss.toFloats(evaluation.stream())[0];
        }
    }

    /** Computes this rank's part of the loss of {@code step}: of a sequence that is longer on rank 1. */
    private Tensor loss(Rank rank, int step, Strategy strategy, Pass pass) {
        int length = 24 + 8 * rank.index();
        int[] numbers = new int[length];
        int[] next = new int[length];
        for (int i = 0; i < length; i++) {
            numbers[i] = (5 * step + rank.index() + i) % 32;
            next[i] = (numbers[i] + 1) % 32;
        }
        pass.sequences(Sequences.packed(pass.scope(), length));
        Tensor ids = pass.scope().tensor(DType.INT32, length);
        Tensor labels = pass.scope().like(ids);
        Tensor labelled = pass.scope().tensor(DType.INT32, 1);
        ids.set(pass.stream(), numbers);
        labels.set(pass.stream(), next);
        labelled.set(pass.stream(), length);
        strategy.sumOverRanks(labelled); // the step's labelled tokens, by which each rank divides
        return crossEntropy.forward(model.forward(embedding.forward(ids, pass), pass), labels, labelled, pass);
    }
}
