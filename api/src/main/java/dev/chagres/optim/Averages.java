package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.List;

/**
 * The averages of schedule-free methods, FLOAT32, in the order of the gradients, beside weights of any type. They and the vector that they
 * average begin with the weights.
 *
 * <p>Threading: the device's thread.
 */
final class Averages extends MasterCopies {
    static final String ENDING = ".x";

    private final List<UpdateRange> ranges;
    private final Scope scope;
    private final Tensor averages;
    private final Tensor averaged;
    private final List<Tensor> weights;
    private final List<Tensor> averageRanges;
    private final List<Tensor> averagedRanges;

    /**
     * Allocates the averages.
     *
     * @param averaged FLOAT32, as many as the gradients
     */
    Averages(Parameters parameters, List<UpdateRange> ranges, Scope scope, Tensor averaged) {
        super(parameters, scope);
        this.ranges = ranges;
        this.scope = scope;
        this.averaged = averaged;
        averages = scope.tensor(DType.FLOAT32, averaged.count());
        averages.zero(scope.stream());
        weights = ranges.stream()
                .map(range -> scope.view(range.weights(), range.weightOffset(), range.count()))
                .toList();
        averageRanges = ranges.stream().map(this::of).toList();
        averagedRanges = ranges.stream()
                .map(range -> scope.view(this.averaged, range.gradientOffset(), range.count()))
                .toList();
    }

    @Override
    void take() {
        for (int i = 0; i < ranges.size(); i++) {
            Elementwise.cast(weights.get(i), averageRanges.get(i), scope.stream());
            Elementwise.cast(weights.get(i), averagedRanges.get(i), scope.stream());
        }
    }

    /** Enqueues weights that are the averages. */
    void give() {
        for (int i = 0; i < ranges.size(); i++) {
            Elementwise.cast(averageRanges.get(i), weights.get(i), scope.stream());
        }
    }

    @Override
    Tensor of(UpdateRange range) {
        return scope.view(averages, range.gradientOffset(), range.count());
    }

    @Override
    StateVector vector() {
        return new StateVector(ENDING, averages, 1);
    }

    @Override
    void addTo(State.Builder state, Parameter parameter) {
        state.tensor(parameter.name() + ENDING, part(averages, parameter));
    }
}
