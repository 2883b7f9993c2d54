/**
 * NCCL's collectives as safe Java methods over tensors: sums, gathers and transfers among ranks, each of which has a device.
 *
 * <p>Every rank opens a {@link dev.chagres.nccl.Communicator} with the same {@link dev.chagres.nccl.UniqueId} and calls the same
 * collectives in the same order. Each call checks types, counts, devices and shared memory, and enqueues on the stream that the
 * caller names; the result is an argument, and no call makes garbage. A tensor without elements is no error.
 *
 * <p>Letters: N ranks, r the caller's rank, C elements.
 *
 * <p>The types are those of {@link dev.chagres.DType} except INT16, which NCCL does not have. INT8, UINT32, UINT64 and FLOAT64 are for copies
 * and collectives alone.
 */
@NullMarked
package dev.chagres.nccl;

import org.jspecify.annotations.NullMarked;
