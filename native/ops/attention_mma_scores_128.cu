/* Attention with modified scores on tensor cores with heads of up to 128 columns. */
#include <attention_mma_kernels.cuh>

CHANGED_MMA_KERNELS(128, 2, 2, 2, 3)
