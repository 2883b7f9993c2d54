package dev.chagres.cudnn;

import org.jspecify.annotations.Nullable;

/**
 * How many rows, columns and products of each matrix of a batch count, as tensors INT32[…, 1, 1] say when the graph runs: for sequences that
 * are shorter than the longest. What lies beyond is 0 in the product.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC} and its like in {@code cudnn_graph.h}.
 *
 * @param rows of a and c; null for all
 * @param columns of b and c; null for all
 * @param products columns of a and rows of b; null for all
 */
public record MatmulLimits(
        @Nullable GraphTensor rows,
        @Nullable GraphTensor columns,
        @Nullable GraphTensor products) {
    /** All of each matrix. */
    public static final MatmulLimits NONE = new MatmulLimits(null, null, null);
}
