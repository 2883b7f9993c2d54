package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientReduction;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.WeightGather;
import dev.chagres.sharding.ZeroStage;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The ranks that train, and what each keeps of the model. The mesh says it: along {@code PIPELINE} ranks have some of the layers each, along
 * {@code TENSOR} some heads and columns of each layer, along {@code CONTEXT} some of the tokens of each micro-batch, along {@code REPLICATE}
 * and {@code SHARD} some of the micro-batches.
 *
 * @param mesh how many ranks along each dimension
 * @param zero what ranks along {@code SHARD} and {@code CONTEXT} shard; null for nothing
 * @param sequenceParallel whether ranks that split layers have a part of the tokens each between their branches
 * @param places where the ranks run
 * @param stagesPerRank how many times a pipeline's ranks take turns along the layers
 * @param exchange what attention exchanges along {@code CONTEXT}
 * @param reduceType in which ranks along {@code REPLICATE}, {@code SHARD} and {@code CONTEXT} sum gradients
 */
record RankLayout(
        MeshShape mesh,
        @Nullable FullyShardedConfig zero,
        boolean sequenceParallel,
        Places places,
        int stagesPerRank,
        CpCommType exchange,
        DType reduceType) {
    /** Where ranks run. */
    enum Places {
        /** Threads of this program. */
        THREADS,
        /** Processes, of which this one is one. */
        PROCESSES
    }

    /** Returns ranks that are threads, with one stage each. */
    static RankLayout of(MeshShape mesh) {
        return new RankLayout(mesh, null, false, Places.THREADS, 1, CpCommType.A2A, DType.FLOAT32);
    }

    /** Returns the same without sequence parallelism. */
    RankLayout withAllTokens() {
        return new RankLayout(mesh, zero, false, places, stagesPerRank, exchange, reduceType);
    }

    /** Returns the same with one stage a rank. */
    RankLayout withOneStage() {
        return new RankLayout(mesh, zero, sequenceParallel, places, 1, exchange, reduceType);
    }

    /** Returns the same with another exchange of attention. */
    RankLayout with(CpCommType newExchange) {
        return new RankLayout(mesh, zero, sequenceParallel, places, stagesPerRank, newExchange, reduceType);
    }

    /** Returns the same in another place. */
    RankLayout with(Places newPlaces) {
        return new RankLayout(mesh, zero, sequenceParallel, newPlaces, stagesPerRank, exchange, reduceType);
    }

    /** Returns the same of another shape. */
    RankLayout with(MeshShape newMesh) {
        return new RankLayout(newMesh, zero, sequenceParallel, places, stagesPerRank, exchange, reduceType);
    }

    /** Returns the same that shards the model. */
    RankLayout with(FullyShardedConfig newZero) {
        return new RankLayout(mesh, newZero, sequenceParallel, places, stagesPerRank, exchange, reduceType);
    }

    /** Returns the number of ranks. */
    int count() {
        return mesh.ranks();
    }

    /** Returns among how many ranks each layer is split. */
    int tensorRanks() {
        return mesh.size(MeshDimension.TENSOR);
    }

    /** Returns among how many ranks the tokens of each micro-batch are split. */
    int contextRanks() {
        return mesh.size(MeshDimension.CONTEXT);
    }

    /** Returns among how many ranks gradients of the same parameters are summed. */
    int gradientRanks() {
        return count() / (tensorRanks() * pipelineRanks());
    }

    /** Returns how many ranks have consecutive layers each. */
    int pipelineRanks() {
        return mesh.size(MeshDimension.PIPELINE);
    }

    /**
     * Returns among how many ranks the micro-batches of a step are split: ranks along the other dimensions compute the same ones.
     */
    int dataRanks() {
        return count() / (tensorRanks() * contextRanks() * pipelineRanks());
    }

    /** Returns whether a graph can hold a rank's step: all of it is enqueued in one order, on memory that stays. */
    boolean isCapturable() {
        return zero == null && pipelineRanks() == 1 && contextRanks() == 1;
    }

    /** Returns which of these a rank is: ranks of a pipeline are further apart than others. */
    int dataRank(int rank) {
        return rank / (tensorRanks() * contextRanks()) % dataRanks();
    }

    /** Returns an empty plan of what a rank of {@code ranks} has of a model. */
    ModelPlan begin(Mesh ranks) {
        TensorParallel tensor = TensorParallel.of(ranks.along(MeshDimension.TENSOR));
        return new ModelPlan(
                sequenceParallel ? tensor.withSequenceParallel() : tensor,
                exchange.of(ContextParallel.of(ranks.along(MeshDimension.CONTEXT))));
    }

    /**
     * Checks that ranks divide the heads of a model.
     *
     * @param option that says what ranks split or shard
     * @throws IllegalArgumentException when they do not
     */
    void requireHeads(String option, TrainingPlan.Start start) {
        int dividing = exchange == CpCommType.A2A ? contextRanks() : 1;
        int ranks = tensorRanks() * dividing;
        if (start.model().heads() % ranks != 0) {
            String names = dividing == 1 ? "tp" : tensorRanks() == 1 ? "cp" : "tp and cp together";
            throw new IllegalArgumentException(option + ": expected as many ranks for " + names + " as divide the "
                    + start.model().heads() + " heads of --model " + start.name()
                    + (dividing == 1 ? "" : ", or --cp-comm-type p2p or all-gather")
                    + ", got " + ranks);
        }
    }

    /**
     * Checks that a pipeline's ranks can do what is asked of them.
     *
     * @param option that says what ranks split or shard
     * @throws IllegalArgumentException when the model has fewer layers than there are stages, or casts are to be measured, of which rank 0
     *     knows those of its own stages alone
     */
    void requireStages(String option, TrainingPlan.Start start, int fp8Statistics) {
        if (pipelineRanks() > 1 && fp8Statistics != 0) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected another --strategy than pp beside it, for rank 0"
                            + " has only some of the layers, got " + this);
        }
        long stages = (long) pipelineRanks() * stagesPerRank;
        if (start.model().layers() < stages) {
            throw new IllegalArgumentException((stagesPerRank == 1 ? option : "--stages-per-rank")
                    + ": expected at most as many stages for pp as --model " + start.name() + " has layers, "
                    + start.model().layers()
                    + ", got " + stages + " on " + pipelineRanks() + " ranks");
        }
    }

    /** Returns the strategies in the order of the mesh's dimensions. */
    private List<RankStrategy> strategies() {
        List<RankStrategy> all = new ArrayList<>();
        if (pipelineRanks() > 1) {
            all.add(RankStrategy.PP);
        }
        FullyShardedConfig shared = zero;
        if (shared != null) {
            boolean hybrid = shared.stage() == ZeroStage.THREE && mesh.size(MeshDimension.REPLICATE) > 1;
            all.add(hybrid ? RankStrategy.HSDP : RankStrategy.of(shared.stage()));
        }
        if (contextRanks() > 1) {
            all.add(RankStrategy.CP);
        }
        if (tensorRanks() > 1) {
            all.add(RankStrategy.TP);
        }
        return all.isEmpty() ? List.of(RankStrategy.DDP) : all;
    }

    @Override
    public String toString() {
        long dimensions = Arrays.stream(MeshDimension.values())
                .filter(dimension -> mesh.size(dimension) > 1)
                .count();
        String names = strategies().stream().map(RankStrategy::toString).collect(Collectors.joining("+"));
        boolean ofAll = zero != null && zero.optimizer() == OptimizerSharding.ALL_RANKS;
        return names
                + (dimensions > 1 ? " " + mesh : "")
                + (ofAll ? ", optimizer sharded among all ranks" : "")
                + (sequenceParallel ? ", sequence-parallel" : "")
                + (stagesPerRank > 1 ? ", " + stagesPerRank + " stages per rank" : "")
                + exchanged()
                + (reduceType == DType.FLOAT32 ? "" : ", gradients summed in " + reduceType)
                + gathers()
                + reduces()
                + kept();
    }

    private String exchanged() {
        return switch (exchange) {
            case A2A -> "";
            case P2P -> ", keys passed on";
            case ALL_GATHER -> ", keys gathered";
        };
    }

    private String kept() {
        FullyShardedConfig shared = zero;
        if (shared == null || shared.stage() != ZeroStage.THREE) {
            return "";
        }
        return (shared.reshard() == Reshard.AFTER_STEP ? ", weights gathered once a step" : "")
                + (shared.gradientSync() == GradientSync.LAST_MICRO_BATCH ? ", gradients summed once a step" : "");
    }

    private String gathers() {
        return zero != null && zero.weightGather() == WeightGather.COPY_ENGINE
                ? ", weights gathered by copy engines"
                : "";
    }

    private String reduces() {
        return zero != null && zero.gradientReduction() == GradientReduction.COPY_ENGINE
                ? ", gradients reduced by copy engines"
                : "";
    }

    /** Values of {@code --cp-comm-type}: what attention exchanges between context-parallel ranks, by TE's names. */
    enum CpCommType {
        /** All tokens of some heads, by an all-to-all. */
        A2A,
        /** Keys and values, which travel round the ranks. */
        P2P,
        /** Keys and values, which all ranks gather. */
        ALL_GATHER;

        /** Returns {@code ranks} with this exchange. */
        ContextParallel of(ContextParallel ranks) {
            return switch (this) {
                case A2A -> ranks;
                case P2P -> ranks.withRing();
                case ALL_GATHER -> ranks.withAllGather();
            };
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }
}
