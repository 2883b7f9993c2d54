package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * The averages of schedule-free methods, FLOAT32, in the order of the gradients, beside weights of any type. They and the vector that they
 * average begin with the weights.
 *
 * <p>Threading: the device's thread.
 */
final class Averages extends MasterCopies {
    static final String ENDING = ".x";

    private final List<Tensor> weights;
    private final List<Tensor> averageRanges;
    private final List<Tensor> averagedRanges;

    /**
     * Allocates the averages.
     *
     * @param averaged FLOAT32, as many as the gradients
     */
    Averages(Parameters parameters, List<UpdateRange> ranges, Scope scope, Tensor averaged) {
        Tensor averages = scope.tensor(DType.FLOAT32, averaged.count());
        averages.zero(scope.stream());
        super(parameters, new StateVector(ENDING, averages, 1), scope);
        weights = ranges.stream()
                .map(range -> scope.view(range.weights(), range.weightOffset(), range.count()))
                .toList();
        averageRanges = parts(averages, ranges, scope);
        averagedRanges = parts(averaged, ranges, scope);
    }

    @Override
    void take() {
        for (int i = 0; i < weights.size(); i++) {
            Elementwise.cast(weights.get(i), averageRanges.get(i), scope.stream());
            Elementwise.cast(weights.get(i), averagedRanges.get(i), scope.stream());
        }
    }

    /** Enqueues weights that are the averages. */
    void give() {
        for (int i = 0; i < weights.size(); i++) {
            Elementwise.cast(averageRanges.get(i), weights.get(i), scope.stream());
        }
    }

    private static List<Tensor> parts(Tensor vector, List<UpdateRange> ranges, Scope scope) {
        return ranges.stream()
                .map(range -> scope.view(vector, range.gradientOffset(), range.count()))
                .toList();
    }
}
