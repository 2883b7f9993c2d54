package dev.chagres.samples.train;

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
 */
record RankLayout(
        int count,
        RankStrategy strategy,
        MeshShape mesh,
        OptimizerSharding optimizer,
        boolean sequenceParallel,
        RankPlaces places) {
    /** Returns among how many ranks each layer is split. */
    int tensorRanks() {
        return mesh.size(MeshDimension.TENSOR);
    }

    /** Returns among how many ranks the micro-batches of a step are shared out: those that split layers compute the same ones. */
    int dataRanks() {
        return count / tensorRanks();
    }

    /** Returns which of these a rank is. */
    int dataRank(int rank) {
        return rank / tensorRanks();
    }

    @Override
    public String toString() {
        boolean meshed = strategy == RankStrategy.HSDP || (strategy == RankStrategy.TP && dataRanks() > 1);
        return (meshed ? strategy + " " + mesh : strategy.toString()) + (sequenceParallel ? ", sequence-parallel" : "");
    }
}
