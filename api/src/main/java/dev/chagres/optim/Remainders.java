package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.parameter.Parameters;
import java.util.List;

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

    /** Throws an {@link IllegalArgumentException} when trained weights are FLOAT16. */
    Remainders(Parameters parameters, List<UpdateRange> ranges, Scope scope) {
        for (UpdateRange range : ranges) {
            if (range.weights().dtype() == DType.FLOAT16) {
                throw new IllegalArgumentException("masters: expected FLOAT32 for weights of FLOAT16, got REMAINDER,"
                        + " which BFLOAT16 weights can have");
            }
        }
        // Two bytes an element, in the order of the gradients. Without 16-bit weights one element.
        boolean needed = ranges.stream().anyMatch(range -> !range.isFloat32());
        Tensor bytes = scope.tensor(
                DType.BYTE, BYTES * (needed ? parameters.gradients().count() : 1));
        super(parameters, new StateVector(StateVector.REMAINDER, bytes, BYTES), scope);
    }

    /** The remainder of a BFLOAT16 number as FP32 master is 0. */
    @Override
    void take() {
        vector().elements().zero(scope.stream());
    }
}
