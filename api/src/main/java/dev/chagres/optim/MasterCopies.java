package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import org.jspecify.annotations.Nullable;

/**
 * What an optimizer keeps beside weights of 16 bits, so that small updates are not lost.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class MasterCopies implements StepWork permits MasterWeights, Remainders {
    private final Parameters parameters;
    private final Scope scope;
    private int version;

    MasterCopies(Parameters parameters, Scope scope) {
        this.parameters = parameters;
        this.scope = scope;
        version = parameters.version();
    }

    /** Enqueues new copies of what the weights are now. */
    abstract void take();

    /** Returns what belongs to a range, null where its weights are FLOAT32. */
    abstract @Nullable Tensor of(UpdateRange range);

    /** Returns all of them in the order of the gradients; without weights of 16 bits it is for none. */
    abstract StateVector vector();

    /** Adds what belongs to a parameter, if anything does. */
    abstract void addTo(State.Builder state, Parameter parameter);

    /** Enqueues what a step needs that comes next: new copies where weights were written from outside since. */
    final void prepare() {
        Capture capture = Inside.capture(scope.stream());
        if (capture != null && parameters.isChangedInCapture()) {
            take(); // Behind the graph's own writes, so in the graph.
            // What the graph writes behind its step counts later at each launch.
            capture.eachLaunch(this, MasterCopies::keepLoaded);
        } else {
            Inside.eachStep(scope.stream(), this);
        }
    }

    /** Enqueues new copies where weights were written from outside since. */
    @Override
    public final void write() {
        if (version != parameters.version()) {
            take();
            keepLoaded();
        }
    }

    /** Says that the copies were loaded with the weights: they stay as they are. */
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
