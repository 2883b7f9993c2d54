package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;

/**
 * How a reduction makes one element of many.
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
    AVG(Cudnn.CUDNN_REDUCE_TENSOR_AVG()),
    /** The sum of magnitudes. */
    NORM1(Cudnn.CUDNN_REDUCE_TENSOR_NORM1()),
    /** The square root of the sum of squares. */
    NORM2(Cudnn.CUDNN_REDUCE_TENSOR_NORM2()),
    /** The product of those that are not 0. */
    MUL_NO_ZEROS(Cudnn.CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS());

    private final int code;

    ReductionMode(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
