package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TokenScatter;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Examples of docs/strategies.md. */
@Tag("L0")
@Tag("L2")
class StrategyExamplesTest {
    private static final Initializer WEIGHTS = Initializer.normal(0.1f);

    @Test
    void dataParallelInPlaceOfFullySharded() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(8, 8, WEIGHTS, plan.group("layer"));
            // @start region="dataParallel"
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 42);
                    DataParallel strategy = DataParallel.of(parameters, rank.communicator());
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                    Pass training = Pass.training(rank.device())) {
                // @end
                strategy.follow(training);
                training.begin();
                Tensor x = training.scope().tensor(DType.FLOAT32, 2, 8);
                x.zero(training.stream());
                layer.backward(layer.forward(x, training), training);
                strategy.sumGradients();
                optimizer.step(1e-3f);
                assertEquals(1, parameters.step());
            }
        });
    }

    @Test
    void shardedWithOptions() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            assertEquals(8, new Linear(8, 8, WEIGHTS, plan.group("layer")).outputColumns(8));
            long seed = 42;
            // @start region="config"
            FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                    .withReshard(Reshard.AFTER_STEP)
                    .withGradientSync(GradientSync.LAST_MICRO_BATCH);
            Communicator all = rank.communicator();
            try (Mesh mesh = Mesh.of(all, MeshShape.ofOne().with(MeshDimension.SHARD, all.ranks()));
                    FullySharded strategy = FullySharded.allocate(plan, DType.BFLOAT16, seed, config, mesh)) {
                // @end
                assertEquals(ZeroStage.THREE, strategy.stage());
            }
        });
    }

    private record Result(float loss, float[] gradient) {}

    /** A step of a model whose tokens {@code ranks} split between branches, or of the whole one. */
    private static Result step(Device device, TensorParallel ranks) {
        ModelPlan plan = new ModelPlan(ranks);
        Embedding embedding = new Embedding(32, 16, WEIGHTS, plan.group("embedding"));
        TransformerLayer layers = new TransformerLayer(
                TransformerLayerConfig.encoder(16, AttentionConfig.of(2, 8, AttentionMask.causal())),
                plan.group("layer"));
        Linear head = new Linear(16, 32, WEIGHTS, plan.group("head"));
        CrossEntropy crossEntropy = new CrossEntropy(32);
        try (Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 42);
                Pass pass = Pass.training(device)) {
            Stream stream = pass.stream();
            int[] numbers = new int[12];
            Arrays.setAll(numbers, i -> 5 * i % 32);
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 12));
            Tensor ids = pass.scope().tensor(DType.INT32, 12);
            Tensor labels = pass.scope().like(ids);
            ids.set(stream, numbers);
            labels.set(stream, numbers);
            // @start region="sequenceParallel"
            TokenScatter scatter = new TokenScatter(plan); // once, like layers
            TokenGather gather = new TokenGather(plan);
            // in each micro-batch:
            Tensor x = scatter.forward(embedding.forward(ids, pass), pass); // this rank's tokens
            Tensor y = gather.forward(layers.forward(x, pass), pass); // all tokens
            Tensor loss = crossEntropy.forward(head.forward(y, pass), labels, pass);
            Tensor dy = gather.backward(head.backward(crossEntropy.backward(pass), pass), pass);
            embedding.backward(scatter.backward(layers.backward(dy, pass), pass), pass);
            // @end
            parameters.completeGradients();
            return new Result(
                    loss.toFloats(stream)[0], embedding.weight().gradient().toFloats(stream));
        }
    }

    @Test
    void tokensAreScatteredAndGathered() {
        DevicesNeeded.assume(2);
        List<Result> parts = Ranks.local(2)
                .run(rank -> step(
                        rank.device(), TensorParallel.of(rank.communicator()).withSequenceParallel()));
        try (Device device = Device.open()) {
            Result whole = step(device, TensorParallel.none());
            for (Result part : parts) {
                assertEquals(whole.loss, part.loss, 1e-3f * whole.loss);
                assertArrayEquals(whole.gradient, part.gradient, 1e-3f);
            }
        }
    }
}
