/* Attention on tensor cores with heads of up to 128 columns. */
#include <attention_mma_kernels.cuh>

MMA_KERNELS(128, 2, 2, 2)
