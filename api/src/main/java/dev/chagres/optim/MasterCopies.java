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
    private final StateVector vector;
    final Scope scope;
    private int version;

    /** {@code vector}: all masters, in the order of the gradients, in {@code scope}. */
    MasterCopies(Parameters parameters, StateVector vector, Scope scope) {
        this.parameters = parameters;
        this.vector = vector;
        this.scope = scope;
        version = parameters.version();
    }

    /** Enqueues new masters from the present weights. */
    abstract void take();

    /** Returns the masters of a range; null for FLOAT32 weights. */
    final @Nullable Tensor of(UpdateRange range) {
        return vector.isFor(range.weights().dtype())
                ? scope.view(vector.elements(), vector.countOf(range.gradientOffset()), vector.countOf(range.count()))
                : null;
    }

    /** Returns how masters of 16-bit weights are made. */
    static OptimizerState.Masters of(Parameters parameters, AdamW.Masters kind) {
        return (ranges, scope, _) -> kind == AdamW.Masters.REMAINDER
                ? new Remainders(parameters, ranges, scope)
                : new MasterWeights(parameters, ranges, scope);
    }

    /** Returns all masters, in the order of the gradients. */
    final StateVector vector() {
        return vector;
    }

    /** Adds the masters of a parameter, if it has any. */
    final void addTo(State.Builder state, Parameter parameter) {
        if (vector.isFor(parameter.weight().dtype())) {
            long first = vector.countOf(offset(parameter));
            state.tensor(
                    parameter.name() + vector.ending(),
                    scope.view(vector.elements(), first, vector.shapeOf(parameter)));
        }
    }

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

    /** Returns the first element of a parameter in the order of the gradients. */
    final long offset(Parameter parameter) {
        return UpdateRange.offset(parameters, parameter);
    }
}
