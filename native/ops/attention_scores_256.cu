/* Attention with modified scores with heads of up to 256 columns. */
#include <attention_scores_kernels.cuh>

CHANGED_KERNELS(256, 2, 1)
