package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.attention.AttentionMask;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ParallelMode;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.RankedRun.Variant;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Products of strategies: ranks of a mesh compute what one rank computes that accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class MeshTrainingTest {
    private static final long SEED = 7;
    private static final AttentionConfig MANY_HEADS =
            AttentionConfig.of(24, 8, AttentionMask.none()).withDropout(Dropout.of(0.1f));
    private static final TransformerLayerConfig LAYER = TransformerLayerConfig.encoder(SmallModel.HIDDEN, MANY_HEADS)
            .withMlp(MlpConfig.gelu(SmallModel.HIDDEN).withInner(96))
            .withHiddenDropout(Dropout.of(0.1f));

    /** What ranks along {@code REPLICATE}, {@code SHARD} and {@code CONTEXT} keep of their part of the layers. */
    private enum Kept {
        WHOLE,
        ONE,
        TWO,
        THREE,
        /** Stages with an optimizer sharded among copies, too. */
        ONE_OF_ALL,
        THREE_OF_ALL;

        private FullyShardedConfig config() {
            return switch (this) {
                case WHOLE -> throw new IllegalStateException("nothing is sharded");
                case ONE -> FullyShardedConfig.of(ZeroStage.ONE);
                case TWO -> FullyShardedConfig.of(ZeroStage.TWO);
                case THREE -> FullyShardedConfig.of(ZeroStage.THREE);
                case ONE_OF_ALL -> FullyShardedConfig.of(ZeroStage.ONE).withOptimizer(OptimizerSharding.ALL_RANKS);
                case THREE_OF_ALL -> FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS);
            };
        }
    }

    /** Which tokens tensor-parallel ranks have between branches. */
    private enum Tokens {
        ALL,
        PART
    }

    private static MeshShape shape(int replicate, int shard, int context, int tensor) {
        return MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, replicate)
                .with(MeshDimension.SHARD, shard)
                .with(MeshDimension.CONTEXT, context)
                .with(MeshDimension.TENSOR, tensor);
    }

    private static ModelPlan plan(Mesh mesh, Tokens tokens) {
        TensorParallel ranks = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
        return new ModelPlan(
                tokens == Tokens.PART ? ranks.withSequenceParallel() : ranks,
                ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
    }

    @ParameterizedTest
    @CsvSource({
        "1, 2, 1, 2, ALL, THREE, 2, FROZEN_BOTTOM",
        "1, 2, 1, 2, PART, TWO, 1, EIGHTS",
        "2, 1, 2, 1, ALL, THREE_OF_ALL, 1, EIGHTS",
        "1, 1, 2, 2, ALL, ONE, 3, EIGHTS",
        "2, 2, 1, 2, ALL, ONE_OF_ALL, 1, PLAIN",
        "1, 2, 2, 2, ALL, THREE, 2, RECOMPUTED_EIGHTS",
        "2, 1, 2, 2, ALL, WHOLE, 1, FROZEN_BOTTOM",
        "1, 3, 2, 1, ALL, THREE, 1, FROZEN_BOTTOM"
    })
    void ranksOfAMeshTrainAsOne(
            int replicate,
            int shard,
            int context,
            int tensor,
            Tokens tokens,
            Kept kept,
            int microBatches,
            Variant variant) {
        train(shape(replicate, shard, context, tensor), kept, microBatches, variant, LAYER, mesh -> plan(mesh, tokens));
    }

    private static void train(
            MeshShape shape,
            Kept kept,
            int microBatches,
            Variant variant,
            TransformerLayerConfig layer,
            Function<Mesh, ModelPlan> plans) {
        DevicesNeeded.assume(shape.ranks());
        int shard = shape.size(MeshDimension.SHARD);
        int tensor = shape.size(MeshDimension.TENSOR);
        int dataRanks = shape.size(MeshDimension.REPLICATE) * shard;
        RankedRun expected = RankedRun.ofOne(dataRanks * microBatches, DType.FLOAT32, variant, layer);
        List<RankedRun> runs = Ranks.local(shape.ranks()).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                // @start region="mesh"
                Communicator alike = // who has the same heads and columns
                        mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT);
                // @end
                RankedRun.Sharing sharing = (plan, dtype, data) -> kept == Kept.WHOLE
                        ? DataParallel.of(Parameters.allocate(rank.device(), plan, dtype, SEED), alike)
                        : FullySharded.allocate(plan, dtype, SEED, kept.config(), mesh);
                int dataRank = mesh.coordinate(MeshDimension.REPLICATE) * shard + mesh.coordinate(MeshDimension.SHARD);
                Rank data = new Rank(dataRank, dataRanks, rank.device(), rank.communicator());
                return RankedRun.of(data, sharing, microBatches, DType.FLOAT32, variant, plans.apply(mesh), layer);
            }
        });
        for (int i = 0; i < tensor; i++) {
            int part = i;
            expected.assertSameSteps(IntStream.range(0, shape.ranks())
                    .filter(rank -> rank % tensor == part)
                    .mapToObj(runs::get)
                    .toList());
        }
    }

    /** How context-parallel ranks attend. */
    private enum Exchange {
        HEADS,
        KEYS,
        RING,
        BALANCED_RING;

        private ContextParallel of(ContextParallel ranks) {
            return switch (this) {
                case HEADS -> ranks;
                case KEYS -> ranks.withAllGather();
                case RING -> ranks.withRing();
                case BALANCED_RING -> ranks.withBalancedRing();
            };
        }
    }

    /** Tokens are split twice: among context-parallel ranks, and between branches among tensor-parallel ones. */
    @ParameterizedTest
    @CsvSource({
        "1, 1, 2, 2, HEADS, false, WHOLE, 3, EIGHTS",
        "1, 1, 2, 2, KEYS, true, WHOLE, 3, RECOMPUTED_EIGHTS",
        "1, 1, 2, 2, RING, true, ONE, 3, EIGHTS",
        "1, 1, 2, 2, BALANCED_RING, true, WHOLE, 3, RECOMPUTED_EIGHTS",
        "1, 1, 2, 4, HEADS, true, TWO, 3, EIGHTS",
        "1, 1, 2, 4, BALANCED_RING, false, WHOLE, 1, EIGHTS",
        "1, 1, 4, 2, KEYS, true, THREE, 3, EIGHTS",
        "1, 1, 4, 2, RING, false, WHOLE, 3, EIGHTS",
        "1, 2, 2, 2, HEADS, false, ONE, 2, RECOMPUTED_EIGHTS",
        "1, 2, 2, 2, RING, true, TWO, 2, EIGHTS",
        "1, 2, 2, 2, KEYS, true, THREE, 2, RECOMPUTED_EIGHTS",
        "2, 1, 2, 2, BALANCED_RING, true, THREE_OF_ALL, 1, EIGHTS"
    })
    void ranksThatShareTokensTwiceTrainAsOne(
            int replicate,
            int shard,
            int context,
            int tensor,
            Exchange exchange,
            boolean causal,
            Kept kept,
            int microBatches,
            Variant variant) {
        TransformerLayerConfig layer = LAYER.withAttention(
                        causal ? MANY_HEADS.withMask(AttentionMask.causal()) : MANY_HEADS)
                .withDropPath(Dropout.of(0.2f));
        train(
                shape(replicate, shard, context, tensor),
                kept,
                microBatches,
                variant,
                layer,
                mesh -> new ModelPlan(
                        TensorParallel.of(mesh.along(MeshDimension.TENSOR)).withSequenceParallel(),
                        exchange.of(ContextParallel.of(mesh.along(MeshDimension.CONTEXT)))));
    }

    /** A sum over ranks with other heads would be nonsense. */
    @Test
    void ranksThatHaveOtherPartsOfLayersAreRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
                    new MultiheadAttention(
                            NormConfig.layerNorm(32), MANY_HEADS, Initializer.zeros(), plan.group("layer"));
                    FullySharded.allocate(plan, DType.FLOAT32, 1, ZeroStage.ONE, rank.communicator());
                }));
        assertEquals(
                "communicator: expected ranks with the same shard of layers, which 2 tensor-parallel ranks split, got"
                        + " tensor-parallel rank 1 on rank 1 and 0 on rank 0; pass the communicator along the other"
                        + " dimensions of the mesh",
                failure.getCause().getMessage());
    }

    /** Each rank says the same of another one that is gone. */
    @Test
    void whatWentWithARankOfAMesh() {
        DevicesNeeded.assume(8);
        MeshShape shape = shape(2, 2, 1, 2);
        Ranks.local(8).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                ModelPlan plan = plan(mesh, Tokens.ALL);
                new Linear(16, 16, Bias.PRESENT, ParallelMode.COLUMN, Initializer.zeros(), plan.group("layer"));
                FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.ONE);
                try (FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh)) {
                    assertEquals(
                            "with rank 3 went part 1 of 2 of the masters and moments of part 1 of 2 of the heads, columns and"
                                    + " vocabulary of:\n  layer.weight, layer.bias\n"
                                    + "ranks [7] have the same part, in other copies of the model",
                            training.explainLoss(List.of(3)));
                }
            }
        });
    }
}
