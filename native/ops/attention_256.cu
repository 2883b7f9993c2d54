/* Attention with heads of up to 256 columns. */
#include <attention_kernels.cuh>

#define FORWARD(name, T) ATTENTION_KERNEL(name, attention_forward, T, 256, 32, 2)
#define DQ(name, T) ATTENTION_KERNEL(name, attention_dq, T, 256, 32, 2)
#define DKV(name, T) ATTENTION_KERNEL(name, attention_dkv, T, 256, 32, 1)

FOR_FLOATS(FORWARD, attention_forward)
FOR_FLOATS(DQ, attention_dq)
FOR_FLOATS(DKV, attention_dkv)
