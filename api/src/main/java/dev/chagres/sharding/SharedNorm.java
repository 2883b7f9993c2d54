package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.model.NormOverRanks;
import dev.chagres.model.ShardedStep;

/**
 * The norm over ranks of which each has a part of the gradients. It comes before the ranks wait for each other's update.
 *
 * <p>Threading: the device's thread.
 */
record SharedNorm(NormOverRanks norm, SharedSteps steps) implements ShardedStep, AutoCloseable {
    @Override
    public void normOverRanks(Tensor value, Tensor skip) {
        steps.ensureNotAwaited();
        norm.normOverRanks(value, skip);
    }

    @Override
    public void close() {
        norm.close();
    }
}
