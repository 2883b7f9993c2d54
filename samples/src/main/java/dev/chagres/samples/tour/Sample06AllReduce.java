package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclUniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Sums a tensor over all devices, one thread a rank, through NCCL's own functions. */
final class Sample06AllReduce {
    private static final int COUNT = 1000;

    private Sample06AllReduce() {}

    static void run() throws Exception {
        int ranks = Math.min(4, Device.count());
        try (Arena arena = Arena.ofShared();
                ExecutorService threads = Executors.newFixedThreadPool(ranks)) {
            MemorySegment id = ncclUniqueId.allocate(arena);
            Status.nccl(Nccl.ncclGetUniqueId(id), "ncclGetUniqueId");
            List<Future<Float>> sums = new ArrayList<>();
            for (int i = 0; i < ranks; i++) {
                int rank = i;
                sums.add(threads.submit(() -> rank(rank, ranks, id)));
            }
            // Rank r gives r + 1, so the sum is n (n + 1) / 2.
            double expected = ranks * (ranks + 1) / 2.0;
            for (Future<Float> sum : sums) {
                Tour.near("sum", expected, sum.get(), 0);
            }
            System.out.printf("6 allreduce: %d ranks as threads, each has the sum %.0f%n", ranks, expected);
        }
    }

    private static float rank(int rank, int ranks, MemorySegment id) {
        try (Device device = Device.open(rank);
                Scope scope = device.openScope();
                Arena arena = Arena.ofConfined()) {
            Tensor tensor = scope.tensor(DType.FLOAT32, COUNT);
            float[] values = new float[COUNT];
            java.util.Arrays.fill(values, rank + 1);
            tensor.set(device.stream(), values);

            MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
            Status.nccl(Nccl.ncclCommInitRank(out, ranks, id, rank), "ncclCommInitRank");
            MemorySegment communicator = out.get(ValueLayout.ADDRESS, 0);
            try {
                Status.nccl(
                        Nccl.ncclAllReduce(
                                tensor.pointer(),
                                tensor.pointer(),
                                COUNT,
                                Nccl.ncclFloat32(),
                                Nccl.ncclSum(),
                                communicator,
                                device.stream().handle()),
                        "ncclAllReduce");
                return tensor.toFloats(device.stream())[COUNT - 1];
            } finally {
                Status.nccl(Nccl.ncclCommDestroy(communicator), "ncclCommDestroy");
            }
        }
    }
}
