/* Attention with heads of up to 64 columns. */
#include <attention_kernels.cuh>

#define FORWARD(name, T) ATTENTION_KERNEL(name, attention_forward, T, 64, 64, 3)
#define DQ(name, T) ATTENTION_KERNEL(name, attention_dq, T, 64, 64, 3)
#define DKV(name, T) ATTENTION_KERNEL(name, attention_dkv, T, 64, 64, 3)

FOR_FLOATS(FORWARD, attention_forward)
FOR_FLOATS(DQ, attention_dq)
FOR_FLOATS(DKV, attention_dkv)
