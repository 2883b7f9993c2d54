package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import org.jspecify.annotations.Nullable;

/**
 * Masters of 16-bit weights, so that small updates are not lost.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class MasterCopies implements StepWork permits MasterWeights, Remainders, Averages, WeightAverage {
    private final Parameters parameters;
    private final Scope scope;
    private int version;

    MasterCopies(Parameters parameters, Scope scope) {
        this.parameters = parameters;
        this.scope = scope;
        version = parameters.version();
    }

    /** Enqueues new masters from the present weights. */
    abstract void take();

    /** Returns the masters of a range; null for FLOAT32 weights. */
    abstract @Nullable Tensor of(UpdateRange range);

    /** Returns how masters of 16-bit weights are made. */
    static OptimizerState.Masters of(Parameters parameters, AdamW.Masters kind) {
        return (ranges, scope, _) -> kind == AdamW.Masters.REMAINDER
                ? new Remainders(parameters, ranges, scope)
                : new MasterWeights(parameters, ranges, scope);
    }

    /** Returns all masters, in the order of the gradients. */
    abstract StateVector vector();

    /** Adds the masters of a parameter, if it has any. */
    abstract void addTo(State.Builder state, Parameter parameter);

    /** Prepares the next step: enqueues new masters if weights were written from outside since. */
    final void prepare() {
        Capture capture = Inside.capture(scope.stream());
        if (capture != null && parameters.isChangedInCapture()) {
            take(); // After the graph's own writes, and so in the graph.
            // Writes of the graph after its step are counted later, at each launch.
            capture.eachLaunch(this, MasterCopies::keepLoaded);
        } else {
            Inside.eachStep(scope.stream(), this);
        }
    }

    /** Enqueues new masters if weights were written from outside since. */
    @Override
    public final void write() {
        if (version != parameters.version()) {
            take();
            keepLoaded();
        }
    }

    /** Records that masters were loaded with the weights, and are kept. */
    final void keepLoaded() {
        version = parameters.version();
    }

    /** Returns the part of {@code vector}, in the order of the gradients, that belongs to {@code parameter}. */
    final Tensor part(Tensor vector, Parameter parameter) {
        return scope.view(vector, offset(parameter), parameter.shape());
    }

    /** Returns the first element of a parameter in the order of the gradients. */
    final long offset(Parameter parameter) {
        return UpdateRange.offset(parameters, parameter);
    }
}
