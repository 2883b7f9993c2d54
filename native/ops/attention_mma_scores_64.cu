/* Attention with modified scores on tensor cores with heads of up to 64 columns. */
#include <attention_mma_kernels.cuh>

CHANGED_MMA_KERNELS(64, 3, 3, 2, 4)
