package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.bindings.NativeException;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A sharded model for whose buffers the device has too little memory: whatever was opened before is closed. */
@Tag("L0")
@Timeout(120)
class ShardedOutOfMemoryTest {
    private static final int HIDDEN = 1024;
    private static final int GROUPS = 4;
    private static final long STEP = 1 << 19;
    /** A multiple of what scopes reserve at a time. */
    private static final long CHUNK = 1 << 21;

    private static final int PARTS = 8;

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        Sequential.of(GROUPS, i -> new Linear(HIDDEN, HIDDEN, Initializer.normal(0.1f), plan.group("layers." + i)));
        return plan;
    }

    private static FullySharded allocate(WeightGather gather, Rank rank) {
        return FullySharded.allocate(
                plan(),
                DType.BFLOAT16,
                3,
                FullyShardedConfig.of(ZeroStage.THREE).withWeightGather(gather),
                rank.communicator());
    }

    /** Takes memory until about {@code left} bytes are free: in parts, since systems refuse to lend all of their memory at once. */
    private static void fill(Scope filler, long left) {
        Device device = filler.device();
        long part = device.totalMemory() / PARTS / CHUNK * CHUNK;
        while (device.freeMemory() - left >= CHUNK) {
            long most = (device.freeMemory() - left) / CHUNK * CHUNK;
            var _ = filler.tensor(DType.BYTE, Math.min(part, most));
        }
    }

    /** Runs {@code action} with about {@code left} bytes of free memory; returns whether they were enough. */
    private static boolean hasEnough(Device device, long left, Runnable action) {
        try (Scope filler = device.openScope()) {
            fill(filler, left);
            Set<Leaks.Trace> before = Set.copyOf(Leaks.open());
            long held = device.heldBytes();
            try {
                action.run();
                return true;
            } catch (NativeException failure) {
                assertTrue(failure.getMessage().contains("bytes were asked for"), failure.getMessage());
                assertEquals(List.of(), openSince(before), left + " bytes left");
                assertEquals(held, device.heldBytes(), left + " bytes left");
                return false;
            }
        }
    }

    private static List<String> openSince(Set<Leaks.Trace> before) {
        return Leaks.open().stream()
                .filter(trace -> !before.contains(trace))
                .map(trace -> trace.getMessage() + " made in " + trace.getStackTrace()[3])
                .toList();
    }

    @ParameterizedTest
    @EnumSource(WeightGather.class)
    void whatAModelHasOpenedIsClosed(WeightGather gather) {
        assumeTrue(Provider.current() == Provider.REFERENCE);
        Ranks.local(1).each(rank -> {
            long left = 0;
            while (!hasEnough(rank.device(), left, () -> allocate(gather, rank).close())) {
                left += STEP;
            }
            assertTrue(left > 0);
        });
    }

    @ParameterizedTest
    @EnumSource(WeightGather.class)
    void whatBuffersInEightBitsHaveOpenedIsClosed(WeightGather gather) {
        assumeTrue(Provider.current() == Provider.REFERENCE);
        Ranks.local(1).each(rank -> {
            long left = 0;
            boolean enough = false;
            while (!enough) {
                try (FullySharded strategy = allocate(gather, rank);
                        Quantizers quantizers = Quantizers.allocate(strategy.parameters(), DelayedScaling.standard())) {
                    enough = hasEnough(rank.device(), left, () -> strategy.reduceAmax(quantizers));
                }
                left += STEP;
            }
            assertTrue(left > STEP);
        });
    }
}
