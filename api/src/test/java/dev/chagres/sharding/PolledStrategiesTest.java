package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DevicesNeeded;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.sharding.StrategyRun.Clipping;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Losses and norms of each strategy are the same to the bit, whether calls of NCCL are polled or not. */
@Tag("L0")
@Tag("L2")
class PolledStrategiesTest {
    private static final int STEPS = 4;

    private static List<String> bits(StrategyCase one, CallMode mode) {
        return Ranks.local(one.ranks())
                .withConfig(CommunicatorConfig.standard().withCallMode(mode))
                .run(rank ->
                        StrategyRun.ofRank(rank, one, Clipping.TO_ONE, STEPS).bits(STEPS));
    }

    @ParameterizedTest
    @EnumSource
    void polledCallsGiveTheSameBits(StrategyKind kind) {
        StrategyCase one = StrategyCase.of(kind, kind.isHybrid() ? 4 : 2, StrategyVariant.PLAIN);
        DevicesNeeded.assume(one.ranks());
        assertEquals(bits(one, CallMode.BLOCKING), bits(one, CallMode.NON_BLOCKING));
    }
}
