package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameters;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One kernel for each type of weights, which updates states, masters and weights of all ranges together.
 *
 * <p>Threading: the device's thread.
 */
final class StepUpdate {
    private final OptimizerStep method;
    private final OptimizerState state;
    /** The ranges of each type of weights. */
    private final List<StepRanges> tables;

    private final int count;

    /**
     * Makes the tables.
     *
     * @param shares FLOAT32 [groups] of schedule-free methods; else null
     */
    StepUpdate(OptimizerStep method, OptimizerState state, @Nullable Tensor shares) {
        this.method = method;
        this.state = state;
        count = state.ranges.size();
        boolean two = method.method() == Method.ADAM || shares != null;
        Scope scope = state.scope;
        tables = UpdateRange.tables(
                state.ranges,
                range -> new StepRange(
                        state.gradients(range),
                        range.weights(scope),
                        state.masters.of(range),
                        state.of(0, range),
                        two ? state.of(1, range) : null,
                        state.numbers.rate(range.group()),
                        shares == null ? null : scope.view(shares, range.group(), 1),
                        range.weightDecay()),
                alike -> StepRanges.of(alike, scope));
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        run(method, gradientScale, skip);
    }

    /** Enqueues the step of another method with the same states. */
    void run(OptimizerStep other, Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < tables.size(); i++) {
            other.step(tables.get(i), state.numbers.step, gradientScale, skip, state.scope.stream());
        }
    }

    /** Says which kernel runs. */
    String explain() {
        return "ops_optimizer_step, " + counted(count, "range") + " in " + counted(tables.size(), "call")
                + ": states, masters and weights in the same kernel";
    }

    static String counted(int number, String what) {
        return number + " " + what + (number == 1 ? "" : "s");
    }

    /**
     * Checks that states of eight bits have scales of one parameter and one rank.
     *
     * @throws IllegalArgumentException when parameters begin between the borders of what shares a scale
     */
    static void ensureAligned(Parameters parameters, DType dtype) {
        if (dtype == DType.BYTE && parameters.access().alignment() % StepState.BLOCK != 0) {
            throw new IllegalArgumentException("parameters: expected each to begin at a multiple of " + StepState.BLOCK
                    + " elements, whose states of eight bits share a scale, got "
                    + parameters.access().alignment()
                    + "; call plan.alignParameters(" + StepState.BLOCK + ") before Parameters.allocate");
        }
    }
}
