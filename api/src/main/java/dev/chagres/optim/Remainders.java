package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The low 16 bits of FP32 masters whose upper halves, rounded, are the BFLOAT16 weights: two bytes per weight instead of four, with the
 * same precision.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code store_param_remainders} of TE's {@code FusedAdam}.
 */
final class Remainders extends MasterCopies {
    private static final int BYTES = 2;

    private final Scope scope;
    /** Two bytes an element, in the order of the gradients. Without 16-bit weights one element. */
    private final Tensor bytes;

    /** Throws an {@link IllegalArgumentException} when trained weights are FLOAT16. */
    Remainders(Parameters parameters, List<UpdateRange> ranges, Scope scope) {
        super(parameters, scope);
        for (UpdateRange range : ranges) {
            if (range.weights().dtype() == DType.FLOAT16) {
                throw new IllegalArgumentException("masters: expected FLOAT32 for weights of FLOAT16, got REMAINDER,"
                        + " which BFLOAT16 weights can have");
            }
        }
        this.scope = scope;
        boolean needed = ranges.stream().anyMatch(range -> !range.isFloat32());
        bytes = scope.tensor(
                DType.BYTE, BYTES * (needed ? parameters.gradients().count() : 1));
    }

    /** The remainder of a BFLOAT16 number as FP32 master is 0. */
    @Override
    void take() {
        bytes.zero(scope.stream());
    }

    @Override
    @Nullable
    Tensor of(UpdateRange range) {
        return range.isFloat32() ? null : scope.view(bytes, BYTES * range.gradientOffset(), BYTES * range.count());
    }

    @Override
    StateVector vector() {
        return new StateVector(StateVector.REMAINDER, bytes, BYTES);
    }

    @Override
    void addTo(State.Builder state, Parameter parameter) {
        if (parameter.weight().dtype() != DType.FLOAT32) {
            long count = parameter.shape().count();
            state.tensor(
                    parameter.name() + StateVector.REMAINDER,
                    scope.view(bytes, BYTES * offset(parameter), count, BYTES));
        }
    }
}
