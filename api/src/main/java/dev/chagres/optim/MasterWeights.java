package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterRange;
import dev.chagres.model.ParameterRange.Decay;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.ops.Elementwise;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.List;

/**
 * FLOAT32 copies of trained weights that have 16 bits, in the order of the gradients. FLOAT32 weights are their own masters.
 *
 * <p>Threading: the device's thread.
 */
final class MasterWeights {
    /** Weights and masters that lie side by side on both sides: one kernel rounds them all. */
    private record Copy(Tensor weights, Tensor masters) {}

    private final Parameters parameters;
    private final Scope scope;
    /** As long as the gradients; elements whose weights are FLOAT32 are not used. Without 16-bit weights one element. */
    private final Tensor masters;

    private final List<Copy> copies = new ArrayList<>();
    private int version;

    MasterWeights(Parameters parameters, Scope scope) {
        this.parameters = parameters;
        this.scope = scope;
        boolean needed =
                parameters.ranges().stream().anyMatch(range -> range.weights().dtype() != DType.FLOAT32);
        masters = scope.tensor(DType.FLOAT32, needed ? parameters.gradients().count() : 1);
        masters.zero(scope.stream());
        List<ParameterRange> run = new ArrayList<>();
        for (ParameterRange range : parameters.ranges()) {
            if (!run.isEmpty() && !follows(range, run.getLast())) {
                addCopy(run);
                run.clear();
            }
            run.add(range);
        }
        addCopy(run);
    }

    private static boolean follows(ParameterRange next, ParameterRange last) {
        return next.weights() == last.weights()
                && next.weightOffset() == last.weightOffset() + last.count()
                && next.gradientOffset() == last.gradientOffset() + last.count();
    }

    private void addCopy(List<ParameterRange> run) {
        if (run.isEmpty() || run.getFirst().weights().dtype() == DType.FLOAT32) {
            return;
        }
        ParameterRange first = run.getFirst();
        long count = run.stream().mapToLong(ParameterRange::count).sum();
        copies.add(new Copy(
                scope.view(first.weights(), first.weightOffset(), count),
                scope.view(masters, first.gradientOffset(), count)));
    }

    /** Enqueues new masters of what the weights are now. */
    void take() {
        for (int i = 0; i < copies.size(); i++) {
            Elementwise.cast(copies.get(i).weights, copies.get(i).masters, scope.stream());
        }
        version = parameters.version();
    }

    /** Enqueues new masters where weights were written from outside since. */
    void takeIfChanged() {
        if (version != parameters.version()) {
            take();
        }
    }

    /** Says that masters were loaded with the weights: they stay as they are. */
    void keepLoaded() {
        version = parameters.version();
    }

    /** Enqueues the weights, rounded from the masters. */
    void round() {
        for (int i = 0; i < copies.size(); i++) {
            Elementwise.cast(copies.get(i).masters, copies.get(i).weights, scope.stream());
        }
    }

    /** Returns gradients, FLOAT32 weights, mean and square of every range with this decay. */
    TensorLists lists(Decay decay, Tensor mean, Tensor square) {
        List<ParameterRange> ranges = parameters.ranges().stream()
                .filter(range -> range.decay() == decay)
                .toList();
        Tensor[][] views = new Tensor[4][ranges.size()];
        for (int i = 0; i < ranges.size(); i++) {
            ParameterRange range = ranges.get(i);
            long offset = range.gradientOffset();
            boolean own = range.weights().dtype() == DType.FLOAT32;
            views[0][i] = scope.view(parameters.gradients(), offset, range.count());
            views[1][i] =
                    scope.view(own ? range.weights() : masters, own ? range.weightOffset() : offset, range.count());
            views[2][i] = scope.view(mean, offset, range.count());
            views[3][i] = scope.view(square, offset, range.count());
        }
        return TensorLists.of(views);
    }

    /** Adds the master of a parameter that has one. */
    void addTo(State.Builder state, Parameter parameter) {
        if (parameter.weight().dtype() != DType.FLOAT32) {
            state.tensor(parameter.name() + ".master", part(masters, parameter));
        }
    }

    /** Returns the part of {@code vector}, in the order of the gradients, that belongs to {@code parameter}. */
    Tensor part(Tensor vector, Parameter parameter) {
        long bytes = parameter.gradient().address() - parameters.gradients().address();
        return scope.view(vector, bytes / Float.BYTES, parameter.shape());
    }
}
