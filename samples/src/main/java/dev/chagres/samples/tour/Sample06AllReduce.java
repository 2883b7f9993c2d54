package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Reduction;
import java.util.Arrays;
import java.util.List;

/** Sums a tensor over all devices, one thread a rank. */
final class Sample06AllReduce {
    private static final int COUNT = 1000;

    private Sample06AllReduce() {}

    static void run() {
        int ranks = Math.min(4, Device.count());
        List<Float> sums = Ranks.local(ranks).run(Sample06AllReduce::sum);
        // Rank r gives r + 1, so the sum is n (n + 1) / 2.
        double expected = ranks * (ranks + 1) / 2.0;
        for (float sum : sums) {
            Tour.near("sum", expected, sum, 0);
        }
        System.out.printf("6 allreduce: %d ranks as threads, each has the sum %.0f%n", ranks, expected);
    }

    private static float sum(Rank rank) {
        Stream stream = rank.device().stream();
        try (Scope scope = rank.device().openScope()) {
            Tensor tensor = scope.tensor(DType.FLOAT32, COUNT);
            float[] values = new float[COUNT];
            Arrays.fill(values, rank.index() + 1);
            tensor.set(stream, values);
            rank.communicator().allReduce(tensor, tensor, Reduction.SUM, stream);
            return tensor.toFloats(stream)[COUNT - 1];
        }
    }
}
