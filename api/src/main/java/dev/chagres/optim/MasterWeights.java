package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;

/**
 * FLOAT32 copies of trained weights that have 16 bits, in the order of the gradients. FLOAT32 weights are their own masters.
 *
 * <p>Threading: the device's thread.
 */
final class MasterWeights extends MasterCopies {
    /** Ranges that are contiguous both in weights and in masters: one kernel copies each. */
    private record Copy(Tensor weights, Tensor masters) {}

    private final List<Copy> copies = new ArrayList<>();

    MasterWeights(Parameters parameters, List<UpdateRange> ranges, Scope scope) {
        // As long as the gradients; elements whose weights are FLOAT32 are not used. Without 16-bit weights one
        // element.
        boolean needed = ranges.stream().anyMatch(range -> !range.isFloat32());
        Tensor masters =
                scope.tensor(DType.FLOAT32, needed ? parameters.gradients().count() : 1);
        masters.zero(scope.stream());
        super(parameters, new StateVector(StateVector.MASTER, masters, 1), scope);
        List<UpdateRange> run = new ArrayList<>();
        for (UpdateRange range : ranges) {
            if (!run.isEmpty() && !run.getLast().endsAt(range)) {
                addCopy(run);
                run.clear();
            }
            run.add(range);
        }
        addCopy(run);
    }

    private void addCopy(List<UpdateRange> run) {
        if (run.isEmpty() || run.getFirst().isFloat32()) {
            return;
        }
        UpdateRange first = run.getFirst();
        long count = run.stream().mapToLong(UpdateRange::count).sum();
        copies.add(new Copy(
                scope.view(first.weights(), first.weightOffset(), count),
                scope.view(vector().elements(), first.gradientOffset(), count)));
    }

    @Override
    void take() {
        for (int i = 0; i < copies.size(); i++) {
            Elementwise.cast(copies.get(i).weights, copies.get(i).masters, scope.stream());
        }
    }
}
