package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.Pass;
import dev.chagres.layer.Sequential;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.model.ModelPlan;
import dev.chagres.ops.ProductPlan;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.Mesh;
import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.MeshShape;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.WeightGather;
import dev.chagres.sharding.ZeroStage;
import java.util.SplittableRandom;

/** One rank's part of some transformer layers in BFLOAT16, of which ranks share everything out, and its own input. */
final class ShardedLayers implements AutoCloseable {
    private static final int LAYERS = 4;

    private final Rank rank;
    private final Sequential layers;
    private final Mesh mesh;
    private final FullySharded strategy;
    private final Pass pass;
    private final Sequences sequences;
    private final Tensor x;
    private final Tensor dy;

    /** Each rank calls it. Makes two steps, and checks that the output is finite and not 0. */
    ShardedLayers(Rank rank, LayerShape shape, LayerRecipe recipe, WeightGather gather) {
        this.rank = rank;
        TransformerLayerConfig config = config(shape);
        ModelPlan plan = new ModelPlan();
        layers = Sequential.of(LAYERS, i -> new TransformerLayer(config, plan.group("layers." + i)));
        mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, rank.count()));
        FullyShardedConfig sharded = FullyShardedConfig.of(ZeroStage.THREE)
                .withReduceType(DType.BFLOAT16)
                .withWeightGather(gather);
        strategy = FullySharded.allocate(plan, DType.BFLOAT16, 1, sharded, mesh);
        pass = Pass.training(rank.device());
        pass.productPlan(ProductPlan.MEASURED);
        strategy.follow(pass);
        Quantizers quantizers = recipe.begin(strategy.parameters(), pass);
        if (quantizers != null) {
            strategy.reduceAmax(quantizers);
        }
        Scope inputs = rank.device().openScope();
        sequences = LayerLayout.DENSE.sequences(inputs, shape);
        x = normal(inputs, shape, 2L * rank.index());
        dy = normal(inputs, shape, 2L * rank.index() + 1);
        run();
        check(run().toFloats(pass.stream()));
    }

    private static TransformerLayerConfig config(LayerShape shape) {
        int headDim = (int) (shape.hidden() / shape.heads());
        return TransformerLayerConfig.encoder(
                        shape.hidden(), AttentionConfig.of(shape.heads(), headDim, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(shape.hidden())
                        .withInner(shape.inner())
                        .withRecomputation(MlpConfig.Recomputation.NONE));
    }

    private Tensor normal(Scope scope, LayerShape shape, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[Math.toIntExact(shape.tokens() * shape.hidden())];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, shape.tokens(), shape.hidden());
        tensor.set(pass.stream(), values);
        return tensor;
    }

    private static void check(float[] dx) {
        double sum = 0;
        for (float value : dx) {
            sum += Math.abs(value);
        }
        if (!(sum > 0) || Double.isInfinite(sum)) {
            throw new IllegalStateException("expected finite numbers other than 0, their absolute sum is " + sum);
        }
    }

    /** Enqueues forward and backward of a step whose gradients are summed over the ranks; weights are gathered anew. Returns x's gradient. */
    Tensor run() {
        pass.begin(sequences);
        strategy.lastMicroBatch();
        layers.forward(x, pass);
        Tensor dx = layers.backward(dy, pass);
        strategy.sumGradients();
        strategy.parameters().nextStep();
        return dx;
    }

    /** Waits for the device. */
    void await() {
        rank.communicator().synchronize(pass.stream());
    }

    @Override
    public void close() {
        pass.close();
        strategy.close();
        mesh.close();
    }

    @Override
    public String toString() {
        return strategy.toString();
    }
}
