package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;

/** Fully sharded layers: weights are gathered in each step, gradients summed over the ranks in BFLOAT16. */
final class ShardedLayers extends LayerStack {
    private final Mesh mesh;
    private final FullySharded strategy;

    /** Each rank calls it. */
    ShardedLayers(Rank rank, LayerShape shape, LayerRecipe recipe, FullyShardedConfig sharded, LayerGroups groups) {
        super(rank, shape);
        mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, rank.count()));
        strategy = FullySharded.allocate(groups.of(plan), DType.BFLOAT16, 1, sharded, mesh);
        strategy.follow(pass);
        Quantizers quantizers = recipe.begin(strategy.parameters(), pass);
        if (quantizers != null) {
            strategy.reduceAmax(quantizers);
        }
        warmUp();
    }

    @Override
    void beginStep() {
        strategy.lastMicroBatch();
    }

    @Override
    void endStep() {
        strategy.sumGradients();
        strategy.parameters().nextStep();
    }

    @Override
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
