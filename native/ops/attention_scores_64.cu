/* Attention with modified scores with heads of up to 64 columns. */
#include <attention_scores_kernels.cuh>

CHANGED_KERNELS(64, 3, 2)
