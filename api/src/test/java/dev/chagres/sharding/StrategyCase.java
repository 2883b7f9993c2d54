package dev.chagres.sharding;

import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * A strategy, or the product of two, on some ranks.
 *
 * @param kinds one or two
 * @param sizes ranks of each
 */
record StrategyCase(List<StrategyKind> kinds, List<Integer> sizes, StrategyVariant variant) {
    private static final int STAGES_PER_RANK = 2;

    static StrategyCase of(StrategyKind kind, int ranks, StrategyVariant variant) {
        return new StrategyCase(List.of(kind), List.of(ranks), variant);
    }

    /** Returns the product of two on 4 or 8 ranks: a hybrid has four of eight, of others either the first or the second one. */
    static StrategyCase of(StrategyKind first, StrategyKind second, int ranks) {
        boolean more = first.isHybrid() || !second.isHybrid() && (first.ordinal() + second.ordinal()) % 2 == 0;
        int ofFirst = more ? ranks / 2 : 2;
        return new StrategyCase(List.of(first, second), List.of(ofFirst, ranks / ofFirst), StrategyVariant.PLAIN);
    }

    int ranks() {
        return shape().ranks();
    }

    MeshShape shape() {
        MeshShape shape = MeshShape.ofOne();
        for (int i = 0; i < kinds.size(); i++) {
            shape = kinds.get(i).along(shape, sizes.get(i));
        }
        return shape;
    }

    /** Returns among how many ranks the parts of a step are split. */
    int dataRanks() {
        return shape().size(MeshDimension.REPLICATE) * shape().size(MeshDimension.SHARD);
    }

    boolean isPipeline() {
        return kinds.stream().anyMatch(StrategyKind::isPipeline);
    }

    int stagesPerRank() {
        return kinds.contains(StrategyKind.PP_INTERLEAVED) ? STAGES_PER_RANK : 1;
    }

    /** Returns the layers of the model: two, or one a stage; one more where stages are uneven. */
    int layers() {
        int stages = shape().size(MeshDimension.PIPELINE) * stagesPerRank();
        return Math.max(2, stages) + (variant == StrategyVariant.UNEVEN ? 1 : 0);
    }

    /** Returns the micro-batches of each data-parallel rank. */
    int microBatches(int step) {
        if (variant == StrategyVariant.ACCUMULATED) {
            return (isPipeline() ? 4 : 2) + (step % 3 == 2 ? 1 : 0);
        }
        return isPipeline() ? 2 : 1;
    }

    @Nullable
    FullyShardedConfig config() {
        return kinds.stream()
                .map(StrategyKind::config)
                .filter(Objects::nonNull)
                .findFirst()
                .orElse(null);
    }

    /** Returns an empty plan of what a rank has of the model. */
    ModelPlan plan(Mesh mesh) {
        TensorParallel tensor = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
        ContextParallel context = ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
        for (StrategyKind kind : kinds) {
            tensor = kind.tensor(tensor);
            context = kind.context(context);
        }
        return new ModelPlan(tensor, context);
    }

    @Override
    public String toString() {
        String ranks = IntStream.range(0, kinds.size())
                .mapToObj(i -> kinds.get(i).name().toLowerCase(Locale.ROOT) + " " + sizes.get(i))
                .collect(Collectors.joining(" x "));
        return variant == StrategyVariant.PLAIN
                ? ranks
                : ranks + ", " + variant.name().toLowerCase(Locale.ROOT);
    }
}
