package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * An exponential moving average of the weights, FLOAT32, in the order of the gradients: {@code a = a + (1 - decay) (w - a)} after each step,
 * w being the master where there is one. It begins with the weights, also where these were written from outside.
 *
 * <p>Threading: the device's thread.
 */
final class WeightAverage extends MasterCopies {
    static final String ENDING = ".ema";

    private final OptimizerState state;
    private final OptimizerStep method;
    private final List<Part> parts;
    /** Of each type of weights; none where masters come to the device by chunks, whose updates make the average's. */
    private final List<StepRanges> tables;
    /** FLOAT32 [1], which the method does not use. */
    private final Tensor scale;
    /** Room for the weights of training while those of an evaluation are in their place. */
    private @Nullable Scope room;
    /** These weights, of each part. */
    private final List<Tensor> kept = new ArrayList<>();

    /**
     * Some elements.
     *
     * @param weights of their type
     * @param average of them
     */
    private record Part(Tensor weights, Tensor average) {}

    /** Allocates averages in the scope of {@code state}. */
    WeightAverage(Parameters parameters, OptimizerState state, float decay) {
        Scope scope = state.scope;
        Tensor averages = OptimizerState.zeros(parameters.gradientCount(), scope);
        super(parameters, new StateVector(ENDING, averages, 1), scope);
        this.state = state;
        scale = state.numbers.rate(0);
        method = OptimizerStep.of(Method.AVERAGE, decay, 0);
        parts = state.ranges.stream()
                .map(range ->
                        new Part(range.weights(scope), scope.view(averages, range.gradientOffset(), range.count())))
                .toList();
        tables = state.hostBytes() > 0 ? List.of() : tables(state.ranges, state.masters::of);
        take();
    }

    /** Makes the tables of ranges, whose masters {@code masters} returns; null for FLOAT32 weights. */
    List<StepRanges> tables(List<UpdateRange> ranges, Function<UpdateRange, @Nullable Tensor> masters) {
        return UpdateRange.tables(
                ranges,
                range -> new StepRange(
                        state.gradients(range),
                        range.weights(scope),
                        masters.apply(range),
                        StepState.of(scope.view(vector.elements(), range.gradientOffset(), range.count())),
                        null,
                        state.numbers.rate(range.group()),
                        null,
                        0),
                alike -> StepRanges.of(alike, scope));
    }

    /** Enqueues what follows a step, unless {@code skip} is not 0. */
    void update(Tensor skip) {
        update(tables, skip);
    }

    /** The same for the ranges of these tables. */
    void update(List<StepRanges> some, Tensor skip) {
        for (int i = 0; i < some.size(); i++) {
            method.step(some.get(i), state.numbers.step, scale, skip, scope.stream());
        }
    }

    @Override
    void take() {
        for (Part part : parts) {
            Elementwise.cast(part.weights, part.average, scope.stream());
        }
    }

    /** Makes the weights the averages. A second call does nothing. */
    void beginEvaluation() {
        state.ensureSwitches("average of weights", "beginEvaluation");
        if (room != null) {
            return;
        }
        state.masters.write(); // Weights that were written from outside are the masters from now on, and the averages.
        write();
        Scope made = scope.device().openScope(scope.stream());
        room = made;
        for (Part part : parts) {
            Tensor copy = made.tensor(part.weights.dtype(), part.weights.count());
            copy.copyFrom(scope.stream(), part.weights);
            kept.add(copy);
            Elementwise.cast(part.average, part.weights, scope.stream());
        }
        state.rewritten(true);
    }

    /** Makes the weights again those of training. A second call does nothing. */
    void endEvaluation() {
        state.ensureSwitches("average of weights", "endEvaluation");
        Scope made = room;
        if (made == null) {
            return;
        }
        for (int i = 0; i < kept.size(); i++) {
            parts.get(i).weights.copyFrom(scope.stream(), kept.get(i));
        }
        close();
        state.rewritten(false);
    }

    /** Frees the room for weights; the averages are freed with the state. */
    void close() {
        kept.clear();
        Scope made = room;
        room = null;
        if (made != null) {
            made.close();
        }
    }
}
