/* Attention on tensor cores with heads of up to 16 columns. */
#include <attention_mma_kernels.cuh>

MMA_KERNELS(16, 5, 8, 4)
