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
    /**
     * What the kernels work on.
     *
     * @param gradients FLOAT32 vector
     * @param mean like the gradients, of the moments' type
     * @param square like the mean
     * @param numbers rates and number of the step
     * @param scope hands out views, and its stream runs the kernels
     */
    record Memory(Tensor gradients, Tensor mean, Tensor square, StepNumbers numbers, Scope scope) {}

    private record Call(
            UpdateRange range,
            Tensor gradient,
            Tensor weight,
            Tensor mean,
            Tensor square,
            @Nullable Tensor master,
            Tensor rate) {}

    private final AdamW.Config config;
    private final Memory memory;
    private final List<Call> calls = new ArrayList<>();

    AdamW.Config config() {
        return config;
    }

    AdamUpdate(AdamW.Config config, List<UpdateRange> ranges, MasterCopies masters, Memory memory) {
        this.config = config;
        this.memory = memory;
        Scope scope = memory.scope();
        for (UpdateRange range : ranges) {
            long offset = range.gradientOffset();
            calls.add(new Call(
                    range,
                    scope.view(memory.gradients(), offset, range.count()),
                    scope.view(range.weights(), range.weightOffset(), range.count()),
                    scope.view(memory.mean(), offset, range.count()),
                    scope.view(memory.square(), offset, range.count()),
                    masters.of(range),
                    memory.numbers().rate(range.group())));
        }
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
                    memory.numbers().step(),
                    gradientScale,
                    skip,
                    config.beta1(),
                    config.beta2(),
                    config.epsilon(),
                    call.range.weightDecay(),
                    config.decayMode(),
                    config.biasCorrection(),
                    memory.scope().stream());
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
