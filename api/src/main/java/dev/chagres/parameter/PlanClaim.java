package dev.chagres.parameter;

import dev.chagres.Device;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Which device has allocated the parameters of a plan, and of its parts: parameters are objects with one memory, so ranks that are threads
 * need a plan each.
 *
 * <p>Threading: thread-safe.
 */
final class PlanClaim {
    private @Nullable Thread thread;
    private @Nullable DeviceState claimant;
    private final List<Parameters> allocated = new ArrayList<>();

    /**
     * Claims the plan for the allocations of {@code device}.
     *
     * @throws IllegalStateException when another thread has allocated it on another device, which is still open
     */
    synchronized void claim(Device device) {
        DeviceState present = Inside.state(device);
        if (claimant != null && thread != null && claimant != present && isOthers(claimant, thread)) {
            throw new IllegalStateException("plan: expected one that no other rank has allocated, got that of device "
                    + claimant.index() + " and thread \"" + thread.getName()
                    + "\"; make the model inside the body of Ranks.run, so that each rank has its own");
        }
        claimant = present;
        thread = Thread.currentThread();
    }

    private static boolean isOthers(DeviceState device, Thread thread) {
        return thread != Thread.currentThread() && thread.isAlive() && !device.isClosed();
    }

    /** Notes memory that the plan's parameters have got. */
    synchronized void allocated(Parameters parameters) {
        allocated.removeIf(one -> !one.hasMemory());
        allocated.add(parameters);
    }

    /**
     * Checks that more can be declared.
     *
     * @throws IllegalStateException while parameters of the plan have memory
     */
    synchronized void ensureDeclares(String name) {
        allocated.removeIf(one -> !one.hasMemory());
        if (!allocated.isEmpty()) {
            throw new IllegalStateException(
                    name + ": expected declarations before Parameters.allocate, got one after it,"
                            + " which would have no memory; make all layers of a plan before its parameters are allocated");
        }
    }
}
