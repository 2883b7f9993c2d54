package dev.chagres.bindings;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Optional;

/**
 * The NVIDIA driver as this process sees it.
 *
 * @param deviceCount GPUs that the process may use
 * @param description one line for people: version and GPUs, or why there is none
 */
record Driver(int deviceCount, String description) {

    private static final String LIBRARY = "libcuda.so.1";
    private static final int CUDA_ERROR_NO_DEVICE = 100;

    boolean isUsable() {
        return deviceCount > 0;
    }

    /** Opens the driver's library, initialises it and counts GPUs. */
    static Driver probe() {
        MemorySegment library;
        try {
            library = DynamicLinker.open(LIBRARY, DynamicLinker.LAZY);
        } catch (DynamicLinker.Refusal refusal) {
            return new Driver(0, "no NVIDIA driver: " + refusal.loaderText());
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_INT);
            int initialised = call(library, "cuInit", 0);
            if (initialised == CUDA_ERROR_NO_DEVICE) {
                return new Driver(0, "NVIDIA driver without a GPU that this process may use (CUDA_VISIBLE_DEVICES?)");
            }
            if (initialised != 0) {
                return new Driver(0, "NVIDIA driver does not start: cuInit returned " + initialised);
            }
            int counted = call(library, "cuDeviceGetCount", out);
            if (counted != 0) {
                return new Driver(0, "NVIDIA driver does not count GPUs: cuDeviceGetCount returned " + counted);
            }
            int devices = out.get(ValueLayout.JAVA_INT, 0);
            String version = call(library, "cuDriverGetVersion", out) == 0
                    ? "CUDA " + out.get(ValueLayout.JAVA_INT, 0) / 1000 + "."
                            + out.get(ValueLayout.JAVA_INT, 0) % 1000 / 10
                    : "unknown version";
            return new Driver(devices, "NVIDIA driver for " + version + ", " + devices + " GPU(s)");
        }
    }

    private static int call(MemorySegment library, String name, int argument) {
        Optional<MethodHandle> handle = DynamicLinker.function(
                library, name, FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT));
        try {
            return handle.isEmpty() ? -1 : (int) handle.get().invokeExact(argument);
        } catch (Throwable unexpected) {
            throw new AssertionError(name + " could not be called", unexpected);
        }
    }

    private static int call(MemorySegment library, String name, MemorySegment out) {
        Optional<MethodHandle> handle =
                DynamicLinker.function(library, name, FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS));
        try {
            return handle.isEmpty() ? -1 : (int) handle.get().invokeExact(out);
        } catch (Throwable unexpected) {
            throw new AssertionError(name + " could not be called", unexpected);
        }
    }
}
