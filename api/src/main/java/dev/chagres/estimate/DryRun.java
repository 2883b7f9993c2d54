package dev.chagres.estimate;

import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.Counting;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Runs a program on devices that count: they hand out addresses of memory that nobody has, and compute nothing. So the program's own calls say how
 * much memory it takes, byte for byte, of a model that no machine at hand could hold, in the time that the host takes to make the calls.
 *
 * {@snippet file="dev/chagres/estimate/DryRunTest.java" region="memory"}
 *
 * <p>Devices, streams and scopes that are opened meanwhile count, on this thread and on those that it starts. First weights are not drawn. What the
 * program reads from a device is undefined, but for tensors of up to 64 KiB that it has written itself: copies and collectives of so few bytes take
 * place, so ranks agree as they always do. A program must not depend on what it has computed.
 *
 * <p>Counting needs the provider {@code reference}. Workspaces of kernels are the reference's: {@link MemoryUse.Holder#WORKSPACES} differs on
 * a GPU, and all else is the same.
 *
 * <p>Threading: thread-safe; each thread counts for itself.
 */
public final class DryRun {
    private DryRun() {}

    /**
     * Returns what {@code program} returns, which must close what it opens.
     *
     * @throws IllegalStateException when the provider is not the reference
     */
    public static <T> T call(Supplier<T> program) {
        return Counting.call(Checks.given("program", program));
    }

    /**
     * Returns what holds memory when {@code program} holds most of it.
     *
     * @param program of one device, which is closed when it returns
     * @throws IllegalStateException when the provider is not the reference
     */
    public static MemoryUse memory(Consumer<Device> program) {
        Checks.given("program", program);
        return call(() -> {
            try (Device device = Device.open()) {
                program.accept(device);
                return device.peakMemoryUse();
            }
        });
    }
}
