package dev.chagres.sharding;

import dev.chagres.Tensor;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.recipe.AllGatherOutputs;

/**
 * Reads of sharded weights: each makes sure that its group is gathered.
 *
 * <p>Threading: the device's thread.
 */
record ShardedReads(FullySharded strategy, ShardedWeights weights, GradientReadiness progress)
        implements AllGatherOutputs {
    void read(Parameter parameter, GradientOwner writer) {
        ensureInCall(parameter);
        WeightForm form = weights.form(parameter, progress.pass(), progress.direction());
        use(parameter.group(), form, writer);
        weights.lend(parameter.group(), form);
    }

    private void use(int group, WeightForm form, GradientOwner writer) {
        if (progress.isUsing(group, form, writer)) {
            return;
        }
        strategy.ensureEnqueues();
        try {
            weights.use(group, form, progress.pass());
            // Only now: the end of the call releases recorded groups, which must be held.
            progress.uses(group, form, writer);
            weights.prefetch(group, progress.pass(), progress.direction());
        } catch (RankFailedException failed) {
            throw strategy.explained(failed);
        }
    }

    @Override
    public Tensor gathered(QuantizerSite site) {
        ensureInCall(site.weight());
        use(site.weight().group(), WeightForm.QUANTIZED, GradientOwner.THIS_CALL);
        return weights.quantized(site);
    }

    @Override
    public void record() {
        strategy.ensureEnqueues();
        weights.record(progress.pass());
    }

    private void ensureInCall(Parameter parameter) {
        if (!progress.isInCall()) {
            throw new IllegalStateException("weight of " + parameter.name()
                    + ": sharded among " + strategy.communicator.ranks()
                    + " ranks, it is gathered only while layers run, and only in a pass that the strategy follows;"
                    + " call strategy.follow(…) for this pass, also for evaluation, or save and load all by"
                    + " RunState.of(strategy)");
        }
    }
}
