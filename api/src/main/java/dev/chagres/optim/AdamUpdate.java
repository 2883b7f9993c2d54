package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Adam;
import dev.chagres.ops.AdamRange;
import dev.chagres.ops.AdamRanges;
import java.util.List;

/**
 * One kernel for each type of weights, which updates moments, masters and weights of all ranges together.
 *
 * <p>Threading: the device's thread.
 */
final class AdamUpdate {
    private final AdamW.Config config;
    private final Adam adam;
    private final OptimizerState state;
    /** The ranges of each type of weights. */
    private final List<AdamRanges> tables;

    private final int count;

    AdamUpdate(AdamW.Config config, List<UpdateRange> ranges, OptimizerState state) {
        this.config = config;
        adam = config.adam();
        this.state = state;
        count = ranges.size();
        Scope scope = state.scope;
        tables = UpdateRange.tables(
                ranges,
                range -> new AdamRange(
                        state.gradients(range),
                        range.weights(scope),
                        scope.view(state.vector(0), range.gradientOffset(), range.count()),
                        scope.view(state.vector(1), range.gradientOffset(), range.count()),
                        state.masters.of(range),
                        state.numbers.rate(range.group()),
                        range.weightDecay()),
                alike -> AdamRanges.of(alike, scope));
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < tables.size(); i++) {
            adam.step(tables.get(i), state.numbers.step, gradientScale, skip, state.scope.stream());
        }
    }

    /** Describes which kernel runs, and why not one of TE's. */
    String explain() {
        return "ops_adam_ranges, " + StepUpdate.counted(count, "range") + " in "
                + StepUpdate.counted(tables.size(), "call") + ": moments of "
                + config.momentDType() + ", masters " + config.masters()
                + ", weights in the same kernel. Not TE's: with numbers on the device it keeps no moments of BFLOAT16, no remainders,"
                + " and beside gradients of FLOAT32 no masters of weights of 16 bits";
    }
}
