/* Attention with modified scores with heads of up to 128 columns. */
#include <attention_scores_kernels.cuh>

CHANGED_KERNELS(128, 2, 2)
