package dev.chagres.samples.train;

import dev.chagres.sharding.MeshShape;
import dev.chagres.sharding.OptimizerSharding;

/**
 * How many ranks train, and what each keeps of the model.
 *
 * @param count data-parallel ranks, among which the micro-batches of a step are shared out
 * @param strategy what each rank keeps of the model
 * @param mesh copies of the model, and the ranks of each
 * @param optimizer among which ranks what the optimizer keeps is shared out, where there are several copies
 */
record RankLayout(int count, RankStrategy strategy, MeshShape mesh, OptimizerSharding optimizer) {
    @Override
    public String toString() {
        return strategy == RankStrategy.HSDP ? strategy + " " + mesh : strategy.toString();
    }
}
