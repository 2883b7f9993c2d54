package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.HostMemory;
import java.lang.foreign.MemorySegment;

/**
 * Small copies to the device that travel as arguments of a kernel.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_copy_host_to_device_via_kernel} in TE's {@code utils.h}.
 */
public final class HostToDevice {
    private static final long MOST_BYTES = 1L << 30;

    private HostToDevice() {}

    /**
     * Enqueues a copy of the first bytes of {@code host} that fills {@code target}. The host memory may change as soon as the call returns,
     * and the call does not wait even if the memory is pageable: for numbers that change from step to step.
     *
     * @param host native memory, at least as long as the target
     * @param target any type and shape, at most 1 GiB; each kernel copies some kilobytes
     * @throws IllegalArgumentException when the host memory is too short or lies on the Java heap, or the device does not
     *     fit
     */
    public static void copyHostToDeviceViaKernel(MemorySegment host, Tensor target, Stream stream) {
        HostMemory.ensureOpen("host", Checks.given("host", host));
        Checks.on(stream, "target", target);
        Checks.writable("target", target);
        long bytes = target.byteSize();
        if (!host.isNative() || host.byteSize() < bytes) {
            throw new IllegalArgumentException("host: expected native memory of at least " + bytes + " bytes, got "
                    + host.byteSize() + (host.isNative() ? " bytes" : " bytes on the Java heap"));
        }
        if (bytes > MOST_BYTES) {
            throw new IllegalArgumentException(
                    "target: expected at most " + MOST_BYTES + " bytes, got " + Checks.describe(target));
        }
        if (bytes != 0) {
            Status.te(
                    AddressCalls.te_copy_host_to_device_via_kernel(host, target.address(), bytes, stream.handle()),
                    "te_copy_host_to_device_via_kernel");
        }
    }
}
