package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The state of {@link AdamW}, and its form in files: moments in the order of the gradients, masters of weights of 16 bits, rates
 * and number of the step.
 *
 * <p>Threading: the device's thread.
 */
final class AdamState implements AutoCloseable {
    private static final String MEAN = ".exp_avg";

    private final Parameters parameters;
    private final Scope scope;
    private final Tensor mean;
    private final Tensor square;
    private final MasterCopies masters;
    private final StepScalars numbers;
    /** What {@link #whole()} returns; null before. */
    private @Nullable State whole;

    /** Allocates moments of 0, and masters from the present weights, in a separate scope. */
    AdamState(Parameters parameters, AdamW.Config config, List<UpdateRange> ranges, List<ParameterGroup> groups) {
        this.parameters = parameters;
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream);
        try {
            long count = parameters.gradients().count();
            mean = scope.tensor(config.momentDType(), count);
            square = scope.tensor(config.momentDType(), count);
            mean.zero(stream);
            square.zero(stream);
            masters = config.masters() == AdamW.Masters.REMAINDER
                    ? new Remainders(parameters, ranges, scope)
                    : new MasterWeights(parameters, ranges, scope);
            masters.take();
            numbers = new StepScalars(scope, groups); // Last, since the scope does not close it if something fails.
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns the scope that owns the memory; its stream runs the steps. */
    Scope scope() {
        return scope;
    }

    /** Returns the running mean of the gradients, like them, of the moments' type. */
    Tensor mean() {
        return mean;
    }

    /** Returns the running mean of the gradients' squares, like {@link #mean}. */
    Tensor square() {
        return square;
    }

    MasterCopies masters() {
        return masters;
    }

    StepScalars numbers() {
        return numbers;
    }

    void ensureOpen() {
        if (numbers.isClosed()) {
            throw new IllegalStateException(
                    "the AdamW of " + scope.device() + " is closed; make another with new AdamW(parameters, config)");
        }
    }

    /** Lists everything that is saved, by parameter. Made once: its views last as long as the optimizer. */
    State whole() {
        ensureOpen();
        State present = whole;
        if (present == null) {
            present = list();
            whole = present;
        }
        return present;
    }

    private State list() {
        if (parameters.access().shard() != null) {
            throw new IllegalStateException("state: expected that of whole weights, got that of a rank's part; save"
                    + " and load it with Strategy.state(optimizer)");
        }
        State.Builder state = new State.Builder();
        for (Parameter parameter : parameters.all()) {
            if (parameter.isTrained()) {
                masters.addTo(state, parameter);
                state.tensor(parameter.name() + MEAN, masters.part(mean, parameter));
                state.tensor(
                        parameter.name() + StateVector.SQUARE,
                        masters.part(square, parameter),
                        State.Values.NOT_NEGATIVE);
            }
        }
        return withStep(state);
    }

    /** Lists what is saved beside {@link #vectors}. */
    State step() {
        ensureOpen();
        return withStep(new State.Builder());
    }

    private State withStep(State.Builder state) {
        return state.number("optimizer.step", numbers::taken, numbers::restore, Integer.MAX_VALUE)
                .lastAfterLoading(masters::keepLoaded)
                .build();
    }

    /** Returns the vectors with state for each element of the gradients, in the order of {@link #whole}. */
    List<StateVector> vectors() {
        ensureOpen();
        return List.of(
                masters.vector(), new StateVector(MEAN, mean, 1), new StateVector(StateVector.SQUARE, square, 1));
    }

    @Override
    public void close() {
        Inside.state(scope.stream()).ensureCloses();
        numbers.close();
        scope.close();
    }
}
