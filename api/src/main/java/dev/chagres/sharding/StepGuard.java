package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterHooks;
import dev.chagres.parameter.ShardRanks;
import dev.chagres.pass.Pass;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Refuses calls of a step that come too early or too late. Their order is: micro-batches, of which the last one may be named before it
 * begins; the sum of the gradients; the optimizer's step.
 *
 * <p>Threading: the device's thread.
 */
final class StepGuard implements ParameterHooks {
    private final Strategy strategy;
    /** Whether the micro-batch under way, or the next one, is the step's last. */
    private boolean last;

    private boolean summed;

    StepGuard(Strategy strategy) {
        this.strategy = strategy;
    }

    /** A step begins, or its gradients are forgotten. */
    void restart() {
        summed = false;
        last = false;
    }

    /** Checks that the next micro-batch may be the last one. */
    void ensureBeforeLast(List<Pass> followed) {
        if (followed.isEmpty()) {
            throw new IllegalStateException(
                    "lastMicroBatch: expected follow(pass) before, so that gradients are reduced during backward;"
                            + " call it with the training pass");
        }
        if (summed) {
            throw new IllegalStateException(
                    "lastMicroBatch: expected before sumGradients, got it after; take the optimizer's step first");
        }
        for (Pass pass : followed) {
            if (pass.calls().savedCount() > 0) {
                throw new IllegalStateException(
                        "lastMicroBatch: expected after pass.begin() and before the first layer, got"
                                + " it after a layer");
            }
        }
    }

    /** The next micro-batch is the last one. */
    void last() {
        last = true;
    }

    boolean isLast() {
        return last;
    }

    /** Checks that the gradients were not summed in this step. */
    void ensureUnsummed() {
        if (summed) {
            throw new IllegalStateException("sumGradients: expected one call a step, got a second one; take the"
                    + " optimizer's step before, or call Parameters.forgetGradients");
        }
    }

    /** The remaining sums are enqueued now: no micro-batch is in progress. */
    void summing() {
        last = false;
    }

    /** All sums were enqueued. */
    void summed() {
        summed = true;
    }

    @Override
    public void reading(Parameter parameter, GradientOwner writer) {
        strategy.reading(parameter, writer);
    }

    @Override
    public void writing(Parameter parameter) {
        strategy.ensureEnqueues();
        // A sum without elements on this rank waits for nothing.
        if (summed || (parameter.shape().count() > 0 && strategy.isSummed(parameter.group()))) {
            throw new IllegalStateException("gradient of " + parameter.name()
                    + ": summed over the ranks already, got another backward call; call "
                    + (summed
                            ? "sumGradients after the step's last backward call, and the optimizer's step before the next"
                            : "lastMicroBatch only before the step's last micro-batch, with all its forward calls"
                                    + " before its backward calls, and not at all with several passes under way at"
                                    + " once"));
        }
        strategy.writing(parameter);
    }

    @Override
    public void stepping() {
        if (!summed) {
            throw new IllegalStateException("gradients: expected the sum over " + strategy.communicator.ranks()
                    + " ranks, got only this rank's, by which the ranks' weights would diverge; call sumGradients()"
                    + " before the norm and the optimizer's step");
        }
    }

    @Override
    public void sumOfShards(Tensor values) {
        strategy.sumOfShards(values);
    }

    @Override
    public @Nullable ShardRanks shardRanks() {
        return strategy.shardRanks();
    }

    @Override
    public void rewritten() {
        strategy.ensureEnqueues();
        strategy.rewritten();
    }

    @Override
    public void loaded() {
        strategy.stateLoaded();
    }

    @Override
    public String toString() {
        return strategy.toString();
    }
}
