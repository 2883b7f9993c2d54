package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.layer.RankedRun.Saved;
import dev.chagres.layer.RankedRun.Sharing;
import dev.chagres.layer.RankedRun.Variant;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Ranks;
import dev.chagres.sharding.ZeroStage;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that share a model out compute what one rank computes that has all of it and accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class FullyShardedTest {
    private static final long SEED = 7;

    private static Sharing stage(ZeroStage stage) {
        return (plan, dtype, rank) -> {
            // @start region="sharded"
            FullySharded strategy = FullySharded.allocate(plan, dtype, SEED, stage, rank.communicator());
            // @end
            return strategy;
        };
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, 1, 1, PLAIN",
        "ONE, 2, 1, DROPOUT",
        "ONE, 3, 2, PLAIN",
        "ONE, 4, 1, RECOMPUTED",
        "ONE, 8, 1, FROZEN_BOTTOM",
        "TWO, 1, 2, PLAIN",
        "TWO, 2, 2, DROPOUT",
        "TWO, 3, 1, FROZEN_BOTTOM",
        "TWO, 4, 1, PLAIN",
        "TWO, 8, 1, RECOMPUTED",
        "THREE, 1, 1, PLAIN",
        "THREE, 2, 1, PLAIN",
        "THREE, 2, 2, DROPOUT",
        "THREE, 3, 2, RECOMPUTED",
        "THREE, 4, 1, FROZEN_BOTTOM",
        "THREE, 8, 1, DROPOUT"
    })
    void ranksComputeWhatOneRankAccumulates(ZeroStage stage, int ranks, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun expected = RankedRun.ofOne(ranks * microBatches, DType.FLOAT32, variant);
        expected.assertSame(
                Ranks.local(ranks).run(rank -> RankedRun.of(rank, stage(stage), microBatches, DType.FLOAT32, variant)));
    }

    /** BF16 weights have FP32 masters, of which each rank keeps a part; rounding differs with the order of sums. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void mastersOfSixteenBitWeightsToo(ZeroStage stage) {
        DevicesNeeded.assume(3);
        RankedRun expected = RankedRun.ofOne(3, DType.BFLOAT16, Variant.PLAIN);
        var actual = Ranks.local(3).run(rank -> RankedRun.of(rank, stage(stage), 1, DType.BFLOAT16, Variant.PLAIN));
        assertEquals(expected.state().keySet(), actual.getFirst().state().keySet());
        for (int step = 0; step < RankedRun.STEPS; step++) {
            float loss = 0;
            for (RankedRun run : actual) {
                loss += run.losses()[step];
            }
            assertEquals(expected.losses()[step], loss, 1e-2 * expected.losses()[step], "loss of step " + step);
        }
        for (RankedRun run : actual) {
            RankedRun.assertClose(expected.first(), run.first(), 0);
            run.state().forEach((name, saved) -> {
                float[] values = saved.values();
                assertArrayEquals(actual.getFirst().state().get(name).values(), values, name + " on all ranks");
                Saved master = run.state().get(name + ".master");
                for (int i = 0; master != null && i < values.length; i++) {
                    assertEquals(DType.toBfloat16(master.values()[i]), DType.toBfloat16(values[i]), name);
                }
            });
        }
    }
}
