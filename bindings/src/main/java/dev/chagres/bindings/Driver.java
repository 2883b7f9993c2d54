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
 * @param cudaVersion the newest CUDA that the driver serves, as 1000 * major + 10 * minor; 0 when unknown
 * @param description one line for people: version and GPUs, or why there is none
 */
record Driver(int deviceCount, int cudaVersion, String description) {

    static final String LIBRARY = "libcuda.so.1";
    private static final int CUDA_ERROR_NO_DEVICE = 100;

    boolean isUsable() {
        return deviceCount > 0;
    }

    /** Opens the driver's library, initialises it and counts GPUs. */
    static Driver probe() {
        OwnLibraries.requireLinux(Surroundings.ofProcess());
        NativeAccess.ensure();
        MemorySegment library;
        try {
            library = DynamicLinker.open(LIBRARY, DynamicLinker.LAZY);
        } catch (DynamicLinker.Refusal refusal) {
            return new Driver(0, 0, "no NVIDIA driver: " + ForeignText.plain(refusal.loaderText()));
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_INT);
            int initialised = call(library, "cuInit", 0);
            if (initialised == CUDA_ERROR_NO_DEVICE) {
                return new Driver(
                        0, 0, "NVIDIA driver without a GPU that this process may use (CUDA_VISIBLE_DEVICES?)");
            }
            if (initialised != 0) {
                return new Driver(0, 0, "NVIDIA driver does not start: cuInit returned " + initialised);
            }
            int counted = call(library, "cuDeviceGetCount", out);
            if (counted != 0) {
                return new Driver(0, 0, "NVIDIA driver does not count GPUs: cuDeviceGetCount returned " + counted);
            }
            int devices = out.get(ValueLayout.JAVA_INT, 0);
            int version = call(library, "cuDriverGetVersion", out) == 0 ? out.get(ValueLayout.JAVA_INT, 0) : 0;
            return new Driver(devices, version, "NVIDIA driver for CUDA " + text(version) + ", " + devices + " GPU(s)");
        }
    }

    String cudaVersionText() {
        return text(cudaVersion);
    }

    private static String text(int version) {
        return version == 0 ? "(unknown version)" : version / 1000 + "." + version % 1000 / 10;
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
