package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Adam;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One kernel a range, which updates moments, master and weight together.
 *
 * <p>Threading: the device's thread.
 */
final class AdamUpdate {
    private record Call(
            UpdateRange range,
            Tensor gradient,
            Tensor weight,
            Tensor mean,
            Tensor square,
            @Nullable Tensor master,
            Tensor rate) {}

    private final AdamW.Config config;
    private final AdamState state;
    private final List<Call> calls = new ArrayList<>();

    AdamUpdate(AdamW.Config config, List<UpdateRange> ranges, Tensor gradients, AdamState state) {
        this.config = config;
        this.state = state;
        Scope scope = state.scope();
        for (UpdateRange range : ranges) {
            long offset = range.gradientOffset();
            calls.add(new Call(
                    range,
                    scope.view(gradients, offset, range.count()),
                    scope.view(range.weights(), range.weightOffset(), range.count()),
                    scope.view(state.mean(), offset, range.count()),
                    scope.view(state.square(), offset, range.count()),
                    state.masters().of(range),
                    state.numbers().rate(range.group())));
        }
    }

    AdamW.Config config() {
        return config;
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        for (int i = 0; i < calls.size(); i++) {
            Call call = calls.get(i);
            Adam.step(
                    call.gradient,
                    call.weight,
                    call.mean,
                    call.square,
                    call.master,
                    call.rate,
                    state.numbers().step(),
                    gradientScale,
                    skip,
                    config.beta1(),
                    config.beta2(),
                    config.epsilon(),
                    call.range.weightDecay(),
                    config.decayMode(),
                    config.biasCorrection(),
                    state.scope().stream());
        }
    }

    /** Says which kernel runs, and why none of TE's. */
    String explain() {
        return "ops_adam, " + calls.size() + (calls.size() == 1 ? " range" : " ranges") + ": moments of "
                + config.momentDType() + ", masters " + config.masters()
                + ", weights in the same kernel. Not TE's: with numbers on the device and gradients of FLOAT32 it keeps no masters"
                + " beside weights of 16 bits, no moments of BFLOAT16 and no remainders";
    }
}
