package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * How a reduction makes one element of many. cuDNN's operation has the first five; the others are compositions of it with pointwise
 * operations, whose names begin with the reduction's.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnReduceTensorOp_t} of {@code cudnn_graph.h}.
 */
public enum ReductionMode {
    /** The sum. */
    ADD(Cudnn.CUDNN_REDUCE_TENSOR_ADD()),
    /** The product. */
    MUL(Cudnn.CUDNN_REDUCE_TENSOR_MUL()),
    /** The least. */
    MIN(Cudnn.CUDNN_REDUCE_TENSOR_MIN()),
    /** The largest. */
    MAX(Cudnn.CUDNN_REDUCE_TENSOR_MAX()),
    /** The largest magnitude. */
    AMAX(Cudnn.CUDNN_REDUCE_TENSOR_AMAX()),
    /** The mean. */
    AVG(ReductionMode.COMPOSED_CODE),
    /** The sum of magnitudes. */
    NORM1(ReductionMode.COMPOSED_CODE),
    /** The square root of the sum of squares. */
    NORM2(ReductionMode.COMPOSED_CODE),
    /** The product of those that are not 0. */
    MUL_NO_ZEROS(ReductionMode.COMPOSED_CODE);

    private static final int COMPOSED_CODE = -1;

    private final int code;

    ReductionMode(int code) {
        this.code = code;
    }

    /** Returns whether cuDNN's operation has this mode. */
    boolean isOperation() {
        return code != COMPOSED_CODE;
    }

    int code() {
        return code;
    }
}
