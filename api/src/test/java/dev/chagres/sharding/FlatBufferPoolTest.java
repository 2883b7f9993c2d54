package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.UnshardedGroups.UnshardedWeights;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Which groups' buffers lie in a window. */
@Tag("L0")
@Tag("L2")
class FlatBufferPoolTest {
    /** Returns, by group, whether the buffers of a model of linear layers lie in the window. */
    private static List<Boolean> inWindow(long... sizes) {
        DevicesNeeded.assume(2);
        return Ranks.local(2)
                .run(rank -> {
                    ModelPlan plan = new ModelPlan();
                    for (int i = 0; i < sizes.length; i++) {
                        Linear layer = new Linear(
                                sizes[i], sizes[i], Bias.ABSENT, Initializer.normal(0.1f), plan.group("layers." + i));
                        assertEquals(sizes[i], layer.weight().shape().size(0));
                    }
                    RankWindows windows = new RankWindows(rank.communicator(), "weights");
                    try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1);
                            FlatBufferPool buffers = new FlatBufferPool(
                                    parameters,
                                    new UnshardedWeights(parameters.access()),
                                    Integer.MAX_VALUE,
                                    windows)) {
                        List<Boolean> found = IntStream.range(0, sizes.length)
                                .mapToObj(group ->
                                        windows.contains(buffers.take(group).vector(0)))
                                .toList();
                        rank.device().stream().synchronize();
                        return found;
                    } finally {
                        windows.close();
                    }
                })
                .getFirst();
    }

    @Test
    void aGroupFarSmallerThanTheLargestLiesInDeviceMemory() {
        assertEquals(List.of(false, true, true), inWindow(16, 128, 64));
    }

    /** 512 x 512 numbers are 1 MiB. */
    @Test
    void aGroupOfAMebibyteAlwaysLiesInTheWindow() {
        assertEquals(List.of(true, true, false), inWindow(512, 2304, 480));
    }
}
