/* Attention with heads of up to 32 columns. */
#include <attention_kernels.cuh>

#define FORWARD(name, T) ATTENTION_KERNEL(name, attention_forward, T, 32, 64, 4)
#define DQ(name, T) ATTENTION_KERNEL(name, attention_dq, T, 32, 64, 3)
#define DKV(name, T) ATTENTION_KERNEL(name, attention_dkv, T, 32, 64, 3)

FOR_FLOATS(FORWARD, attention_forward)
FOR_FLOATS(DQ, attention_dq)
FOR_FLOATS(DKV, attention_dkv)
