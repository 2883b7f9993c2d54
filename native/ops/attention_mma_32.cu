/* Attention on tensor cores with heads of up to 32 columns. */
#include <attention_mma_kernels.cuh>

MMA_KERNELS(32, 4, 4, 3)
