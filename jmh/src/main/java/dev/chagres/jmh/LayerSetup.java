package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.jmh.FullyShardedBenchmark.LayerGroups;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.parameter.Parameters;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import dev.chagres.sharding.ZeroStage;
import java.util.List;

/**
 * The layers that each rank of a benchmark has: a value that travels to other processes as arguments.
 *
 * @param kind whether ranks shard them
 * @param shape of the layers and of each rank's input
 * @param recipe in what precision products are computed
 * @param weightGather in which memory weights are gathered, where they are sharded, as what follows
 * @param gradientReduction how gradients are reduced
 * @param reshard when gathered weights are freed
 * @param groups what is gathered and summed at a time
 * @param normMargin multiprocessors that norms leave to collectives
 * @param productMargin multiprocessors that products leave to them
 */
record LayerSetup(
        Kind kind,
        LayerShape shape,
        LayerRecipe recipe,
        WeightGather weightGather,
        GradientReduction gradientReduction,
        Reshard reshard,
        LayerGroups groups,
        int normMargin,
        int productMargin) {
    /** Whether ranks shard the layers. */
    enum Kind {
        SHARDED,
        ALONE
    }

    /** Layers of which each rank has all. */
    static LayerSetup alone(LayerShape shape, LayerRecipe recipe) {
        return new LayerSetup(
                Kind.ALONE,
                shape,
                recipe,
                WeightGather.DEVICE,
                GradientReduction.REDUCE_SCATTER,
                Reshard.AFTER_STEP,
                LayerGroups.LAYER,
                0,
                0);
    }

    /** Reads what {@link #arguments} wrote. */
    static LayerSetup of(String... arguments) {
        return new LayerSetup(
                Kind.valueOf(arguments[0]),
                LayerShape.valueOf(arguments[1]),
                LayerRecipe.valueOf(arguments[2]),
                WeightGather.valueOf(arguments[3]),
                GradientReduction.valueOf(arguments[4]),
                Reshard.valueOf(arguments[5]),
                LayerGroups.valueOf(arguments[6]),
                Integer.parseInt(arguments[7]),
                Integer.parseInt(arguments[8]));
    }

    List<String> arguments() {
        return List.of(
                kind.name(),
                shape.name(),
                recipe.name(),
                weightGather.name(),
                gradientReduction.name(),
                reshard.name(),
                groups.name(),
                Integer.toString(normMargin),
                Integer.toString(productMargin));
    }

    /** Makes a rank's layers, which check their output. */
    LayerStack open(Rank rank) {
        if (kind == Kind.ALONE) {
            return new AloneLayers(rank, shape, recipe);
        }
        rank.device().multiprocessorMargin(new MultiprocessorMargin(normMargin, productMargin));
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                .withReduceType(DType.BFLOAT16)
                .withGradientReduction(gradientReduction)
                .withWeightGather(weightGather)
                .withReshard(reshard);
        return new ShardedLayers(rank, shape, recipe, config, groups);
    }

    /** The layers of {@link ShardedLayers} without sharding: each rank has all weights, and nothing is communicated. */
    private static final class AloneLayers extends LayerStack {
        private final Parameters parameters;

        AloneLayers(Rank rank, LayerShape shape, LayerRecipe recipe) {
            super(rank, shape);
            parameters = Parameters.allocate(rank.device(), plan, DType.BFLOAT16, 1);
            var _ = recipe.begin(parameters, pass);
            warmUp();
        }

        @Override
        void beginStep() {}

        @Override
        void endStep() {
            parameters.nextStep();
        }

        @Override
        void await() {
            pass.stream().synchronize();
        }

        @Override
        public void close() {
            pass.close();
            parameters.close();
        }

        @Override
        public String toString() {
            return "each rank has all weights";
        }
    }

    /** Fully sharded layers: weights are gathered in each step, gradients summed over the ranks in BFLOAT16. */
    private static final class ShardedLayers extends LayerStack {
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
}
