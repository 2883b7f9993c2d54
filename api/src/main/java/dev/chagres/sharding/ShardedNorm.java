package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parallel.NormOverRanks;
import dev.chagres.parallel.NormReduction;
import java.util.function.UnaryOperator;

/**
 * The norm over ranks with sharded gradients. It is computed before the ranks wait for each other's update.
 *
 * <p>Threading: the device's thread.
 */
record ShardedNorm(NormOverRanks norm, ShardedOptimizerStep steps, UnaryOperator<RankFailedException> explained)
        implements NormReduction, AutoCloseable {
    @Override
    public void normOverRanks(Tensor value, Tensor skip) {
        steps.ensureNotAwaited();
        try {
            norm.normOverRanks(value, skip);
        } catch (RankFailedException failed) {
            throw explained.apply(failed);
        }
    }

    @Override
    public void close() {
        norm.close();
    }
}
