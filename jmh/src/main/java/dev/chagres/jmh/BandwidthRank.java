package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.IntToDoubleFunction;
import org.jspecify.annotations.Nullable;

/** A rank that communicates a whole tensor, and its shard of one, in BFLOAT16. */
final class BandwidthRank extends CollectiveRank {
    private final int rank;
    private final int ranks;
    /** Null if both are in ordinary device memory. */
    private final @Nullable CollectiveMemory window;

    private final Tensor whole;
    private final Tensor shard;
    /** The tensor of the collective that synchronizes devices. */
    private final Tensor one;

    BandwidthRank(int rank, int ranks, UniqueId id, long bytes, CollectiveBandwidthBenchmark.Memory memory) {
        super(rank, ranks, id);
        this.rank = rank;
        this.ranks = ranks;
        long part = bytes / ranks / DType.BFLOAT16.byteSize();
        if (part * ranks * DType.BFLOAT16.byteSize() != bytes) {
            throw new IllegalArgumentException(
                    "bytes: expected a multiple of 2 for each of " + ranks + " ranks, got " + bytes);
        }
        Scope own = scope;
        if (memory == CollectiveBandwidthBenchmark.Memory.WINDOW) {
            long taken = CollectiveMemory.byteSizeOf(DType.BFLOAT16, part * ranks)
                    + CollectiveMemory.byteSizeOf(DType.BFLOAT16, part);
            CollectiveMemory allocated = communicator.allocate(taken, stream);
            window = allocated;
            own = allocated.scope();
        } else {
            window = null;
        }
        whole = own.tensor(DType.BFLOAT16, part * ranks);
        shard = own.tensor(DType.BFLOAT16, part);
        one = scope.tensor(DType.BFLOAT16, 1);
        one.set(stream, 1f);
    }

    /** Waits until the devices of all ranks have reached it. */
    void meet() {
        communicator.allReduce(one, one, Reduction.MAX, stream);
        finish();
    }

    /** Waits for the device by spinning: {@link #await} sleeps 50 us and more between looks in long waits. */
    void finish() {
        stream.synchronize();
    }

    void allReduce() {
        communicator.allReduce(whole, whole, Reduction.SUM, stream);
    }

    void allGather() {
        communicator.allGather(shard, whole, stream);
    }

    void reduceScatter() {
        communicator.reduceScatter(whole, shard, Reduction.SUM, stream);
    }

    /** Checks every element of each: part p of rank r's input is (r + 1) (p + 1); BFLOAT16 holds the sums exactly for up to 8 ranks. */
    void check() {
        int sum = ranks * (ranks + 1) / 2;
        fill(whole, ranks, part -> (rank + 1.0) * (part + 1));
        allReduce();
        expect("all-reduce", whole, ranks, part -> sum * (part + 1.0));
        fill(whole, ranks, part -> (rank + 1.0) * (part + 1));
        reduceScatter();
        expect("reduce-scatter", shard, 1, _ -> sum * (rank + 1.0));
        fill(shard, 1, _ -> rank + 1.0);
        allGather();
        expect("all-gather", whole, ranks, part -> part + 1.0);
    }

    private void fill(Tensor tensor, int parts, IntToDoubleFunction value) {
        try (Arena arena = Arena.ofConfined()) {
            tensor.copyFrom(stream, values(arena, tensor, parts, value));
            stream.synchronize();
        }
    }

    private void expect(String operation, Tensor tensor, int parts, IntToDoubleFunction value) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment got = arena.allocate(tensor.byteSize(), Short.BYTES);
            tensor.copyTo(stream, got);
            stream.synchronize();
            long other = got.mismatch(values(arena, tensor, parts, value));
            if (other >= 0) {
                throw new IllegalStateException(
                        operation + " on rank " + rank + ": another value than expected at byte " + other);
            }
        }
    }

    private static MemorySegment values(Arena arena, Tensor tensor, int parts, IntToDoubleFunction value) {
        MemorySegment all = arena.allocate(tensor.byteSize(), Short.BYTES);
        long each = tensor.byteSize() / parts;
        for (int part = 0; part < parts; part++) {
            MemorySegment one = all.asSlice(part * each, each);
            one.set(ValueLayout.JAVA_SHORT, 0, DType.toBfloat16((float) value.applyAsDouble(part)));
            for (long filled = Short.BYTES; filled < each; filled *= 2) {
                MemorySegment.copy(one, 0, one, filled, Math.min(filled, each - filled));
            }
        }
        return all;
    }

    @Override
    public void close() {
        if (window != null) {
            window.close();
        }
        super.close();
    }
}
