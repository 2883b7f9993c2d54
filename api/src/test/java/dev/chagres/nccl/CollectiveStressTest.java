package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ten thousand steps on two communicators, some replayed, with a rank that is late now and then: nothing hangs, no sum is wrong. */
@Tag("L0")
@Tag("L2")
class CollectiveStressTest {
    private static final int STEPS = 10_000;
    private static final int RANKS = 2;

    @Test
    @Timeout(300)
    void aSlowedRankStopsNobody() {
        DevicesNeeded.assume(2);
        CommunicatorConfig config = CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(60));
        Ranks.local(RANKS).withConfig(config).each(rank -> {
            Stream stream = rank.device().stream();
            SplittableRandom random = new SplittableRandom(rank.index());
            try (Communicator second = rank.communicator().split(0, 0, config.withName("second"));
                    Scope scope = rank.device().openScope()) {
                Tensor sum = scope.tensor(DType.INT64, 3);
                Tensor all = scope.tensor(DType.INT64, 3L * RANKS);
                try (Graph graph = stream.capture(() -> {
                    rank.communicator().allReduce(sum, sum, Reduction.SUM, stream);
                    second.allGather(sum, all, stream);
                })) {
                    for (int step = 0; step < STEPS; step++) {
                        if (rank.index() == 1 && random.nextInt(100) == 0) {
                            LockSupport.parkNanos(random.nextInt(1_000_000));
                        }
                        sum.set(stream, step, rank.index(), 1L);
                        if (step % 2 == 0) {
                            graph.launch();
                        } else {
                            rank.communicator().allReduce(sum, sum, Reduction.SUM, stream);
                            second.allGather(sum, all, stream);
                        }
                        long[] values = all.toLongs(stream);
                        assertEquals((long) RANKS * step, values[3]);
                        assertEquals(RANKS, values[5]);
                    }
                }
            }
        });
    }
}
