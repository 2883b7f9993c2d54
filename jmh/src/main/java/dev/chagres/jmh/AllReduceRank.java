package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** A rank that sums one element: by the api, by the binding, and in C. */
final class AllReduceRank extends CollectiveRank {
    private final Arena arena = Arena.ofConfined();
    private final CollectiveLoop loop;
    private final Tensor x;
    private final Tensor y;
    private final MemorySegment bare;

    /** Opens a second communicator for callers that bypass the api; {@code bareId} is its identifier of NCCL. */
    AllReduceRank(int rank, int ranks, UniqueId id, CommunicatorConfig config, MemorySegment bareId) {
        super(rank, ranks, id, config);
        loop = CollectiveLoop.compile(arena);
        x = scope.tensor(DType.FLOAT32, 1);
        y = scope.tensor(DType.FLOAT32, 1);
        x.set(stream, rank + 1f);
        stream.synchronize();
        MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
        Status.nccl(Nccl.ncclCommInitRank(out, ranks, bareId, rank), "ncclCommInitRank");
        bare = out.get(ValueLayout.ADDRESS, 0);
    }

    void api(int times) {
        for (int i = 0; i < times; i++) {
            communicator.allReduce(x, y, Reduction.SUM, stream);
        }
    }

    void binding(int times) {
        for (int i = 0; i < times; i++) {
            Status.nccl(
                    Nccl.ncclAllReduce(
                            x.pointer(), y.pointer(), 1, Nccl.ncclFloat32(), Nccl.ncclSum(), bare, stream.handle()),
                    "ncclAllReduce");
        }
    }

    void inC(int times) {
        loop.allReduce(x, y, bare, stream, times);
    }

    /** Clears the previous sum. */
    void clear() {
        y.zero(stream);
    }

    /** Checks the sum of 1 to N. */
    void check() {
        float sum = communicator.ranks() * (communicator.ranks() + 1) / 2f;
        float got = y.toFloats(stream)[0];
        if (got != sum) {
            throw new IllegalStateException("expected the sum " + sum + ", got " + got);
        }
    }

    @Override
    public void close() {
        Status.nccl(Nccl.ncclCommDestroy(bare), "ncclCommDestroy");
        arena.close();
        super.close();
    }
}
