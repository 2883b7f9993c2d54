/* Attention on tensor cores with heads of up to 64 columns. */
#include <attention_mma_kernels.cuh>

MMA_KERNELS(64, 3, 3, 2)
