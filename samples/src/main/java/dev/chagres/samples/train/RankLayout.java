package dev.chagres.samples.train;

import dev.chagres.samples.esm.Esm2Size;
import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.MeshShape;
import dev.chagres.sharding.OptimizerSharding;

/**
 * How many ranks train, and what each keeps of the model.
 *
 * @param count ranks
 * @param strategy what each rank keeps of the model
 * @param mesh copies of the model, and the ranks of each by what they share out
 * @param optimizer among which ranks what the optimizer keeps is shared out, where there are several copies
 * @param sequenceParallel whether ranks that split layers have a part of the tokens each between their branches
 * @param places where the ranks run
 * @param stagesPerRank how many times a pipeline's ranks take turns along the layers
 */
record RankLayout(
        int count,
        RankStrategy strategy,
        MeshShape mesh,
        OptimizerSharding optimizer,
        boolean sequenceParallel,
        RankPlaces places,
        int stagesPerRank) {
    /** Takes one stage a rank. */
    RankLayout(
            int count,
            RankStrategy strategy,
            MeshShape mesh,
            OptimizerSharding optimizer,
            boolean sequenceParallel,
            RankPlaces places) {
        this(count, strategy, mesh, optimizer, sequenceParallel, places, 1);
    }

    /** Returns among how many ranks each layer is split. */
    int tensorRanks() {
        return mesh.size(MeshDimension.TENSOR);
    }

    /** Returns among how many ranks the tokens of each micro-batch are shared out. */
    int contextRanks() {
        return mesh.size(MeshDimension.CONTEXT);
    }

    /** Returns how many ranks have consecutive layers each. */
    int pipelineRanks() {
        return mesh.size(MeshDimension.PIPELINE);
    }

    /**
     * Returns among how many ranks the micro-batches of a step are shared out: those that split layers, have some of the layers each, or
     * share out tokens, compute the same ones.
     */
    int dataRanks() {
        return count / (tensorRanks() * contextRanks() * pipelineRanks());
    }

    /** Returns whether a graph can hold a rank's step: all of it is enqueued in one order, on memory that stays. */
    boolean isCapturable() {
        return switch (strategy) {
            case DDP, TP -> true;
            case ZERO1, ZERO2, ZERO3, HSDP, PP, CP -> false;
        };
    }

    /** Returns which of these a rank is: ranks of a pipeline are further apart than others. */
    int dataRank(int rank) {
        return rank / (tensorRanks() * contextRanks()) % dataRanks();
    }

    /**
     * Checks that ranks divide the heads of a model.
     *
     * @throws IllegalArgumentException when they do not
     */
    void requireHeads(Esm2Size size) {
        int ranks = tensorRanks() * contextRanks();
        if (size.heads() % ranks != 0) {
            throw new IllegalArgumentException("--strategy: expected as many ranks for "
                    + (contextRanks() > 1 ? "cp" : "tp") + " as divide the " + size.heads() + " heads of --model "
                    + size
                    + ", got " + ranks);
        }
    }

    /**
     * Checks that a pipeline's ranks can do what is asked of them.
     *
     * @throws IllegalArgumentException when the model has fewer layers than there are stages, or casts are to be measured, of which rank 0
     *     knows those of its own stages alone
     */
    void requireStages(Esm2Size size, int fp8Statistics) {
        if (pipelineRanks() > 1 && fp8Statistics != 0) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected another --strategy than pp beside it, for rank 0"
                            + " has some of the layers alone, got " + this);
        }
        long stages = (long) pipelineRanks() * stagesPerRank;
        if (size.layers() < stages) {
            throw new IllegalArgumentException((stagesPerRank == 1 ? "--strategy" : "--stages-per-rank")
                    + ": expected at most as many stages for pp as --model " + size + " has layers, " + size.layers()
                    + ", got " + stages + " on " + pipelineRanks() + " ranks");
        }
    }

    /** Returns whether the number of ranks and the strategy say all of the mesh. */
    private boolean isStrategyAlone() {
        return dataRanks() == 1 && (tensorRanks() == 1 || pipelineRanks() == 1);
    }

    @Override
    public String toString() {
        boolean meshed = strategy == RankStrategy.HSDP || (strategy.sharesMicroBatches() && !isStrategyAlone());
        return (meshed ? strategy + " " + mesh : strategy.toString())
                + (sequenceParallel ? ", sequence-parallel" : "")
                + (stagesPerRank > 1 ? ", " + stagesPerRank + " stages per rank" : "");
    }
}
