package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Adam;
import dev.chagres.ops.AdamRange;
import dev.chagres.ops.AdamRanges;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;

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
    private final List<AdamRanges> tables = new ArrayList<>();

    private final int count;

    AdamUpdate(AdamW.Config config, List<UpdateRange> ranges, Tensor gradients, OptimizerState state) {
        this.config = config;
        adam = new Adam(config.beta1(), config.beta2(), config.epsilon(), config.decayMode(), config.biasCorrection());
        this.state = state;
        count = ranges.size();
        Map<DType, List<AdamRange>> byType = new EnumMap<>(DType.class);
        Scope scope = state.scope();
        for (UpdateRange range : ranges) {
            long offset = range.gradientOffset();
            byType.computeIfAbsent(range.weights().dtype(), _ -> new ArrayList<>())
                    .add(new AdamRange(
                            scope.view(gradients, offset, range.count()),
                            scope.view(range.weights(), range.weightOffset(), range.count()),
                            scope.view(state.vector(0), offset, range.count()),
                            scope.view(state.vector(1), offset, range.count()),
                            state.masters().of(range),
                            state.numbers().rate(range.group()),
                            range.weightDecay()));
        }
        byType.values().forEach(alike -> tables.add(AdamRanges.of(alike, scope)));
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < tables.size(); i++) {
            adam.step(tables.get(i), state.numbers().step(), gradientScale, skip, state.scope().stream());
        }
    }

    /** Describes which kernel runs, and why not one of TE's. */
    String explain() {
        return "ops_adam_ranges, " + counted(count, "range") + " in " + counted(tables.size(), "call") + ": moments of "
                + config.momentDType() + ", masters " + config.masters()
                + ", weights in the same kernel. Not TE's: with numbers on the device and gradients of FLOAT32 it keeps no masters"
                + " beside weights of 16 bits, no moments of BFLOAT16 and no remainders";
    }

    private static String counted(int number, String what) {
        return number + " " + what + (number == 1 ? "" : "s");
    }
}
