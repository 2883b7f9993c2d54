package dev.chagres.jmh.states;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * One GPU as the driver's management library sees it: its clocks, and why they are lower than they could be.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: {@code nvml.h}.
 */
final class Nvml implements AutoCloseable {
    static final String LIBRARY = "libnvidia-ml.so.1";

    /** {@code nvmlClocksEventReasonSwPowerCap} and {@code …HwPowerBrakeSlowdown}. */
    static final long POWER = 0x4 | 0x80;

    /** {@code nvmlClocksEventReasonSwThermalSlowdown} and {@code …HwThermalSlowdown}. */
    static final long HEAT = 0x20 | 0x40;

    /** Also {@code nvmlClocksEventReasonHwSlowdown}. */
    static final long THROTTLED = POWER | HEAT | 0x8;

    private static final int SM = 1;
    private static final int MEMORY = 2;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong HANDLE = ValueLayout.JAVA_LONG;

    private final Arena arena;
    private final SymbolLookup library;
    private final MethodHandle clock;
    private final MethodHandle reasons;
    private final MemorySegment out;
    private final long device;

    /** What was read at one moment. */
    record Sample(int smMegahertz, int memoryMegahertz, long reasons) {}

    /**
     * Opens the driver's library.
     *
     * @throws IllegalArgumentException when there is none
     * @throws IllegalStateException when it refuses
     */
    static Nvml open(String pciBusId) {
        Arena arena = Arena.ofShared();
        try {
            return new Nvml(arena, SymbolLookup.libraryLookup(LIBRARY, arena), pciBusId);
        } catch (RuntimeException failure) {
            arena.close();
            throw failure;
        }
    }

    /** {@code arena} is closed with this. */
    Nvml(Arena arena, SymbolLookup library, String pciBusId) {
        this.arena = arena;
        this.library = library;
        out = arena.allocate(HANDLE);
        call(function("nvmlInit_v2"), "nvmlInit_v2");
        call(
                function("nvmlDeviceGetHandleByPciBusId_v2", ValueLayout.ADDRESS, ValueLayout.ADDRESS),
                "nvmlDeviceGetHandleByPciBusId_v2",
                arena.allocateFrom(pciBusId),
                out);
        device = out.get(HANDLE, 0);
        clock = function("nvmlDeviceGetClockInfo", HANDLE, INT, ValueLayout.ADDRESS);
        reasons = find("nvmlDeviceGetCurrentClocksEventReasons", HANDLE, ValueLayout.ADDRESS)
                .orElseGet(() -> function("nvmlDeviceGetCurrentClocksThrottleReasons", HANDLE, ValueLayout.ADDRESS));
    }

    private Optional<MethodHandle> find(String name, MemoryLayout... arguments) {
        return library.find(name)
                .map(address -> Linker.nativeLinker().downcallHandle(address, FunctionDescriptor.of(INT, arguments)));
    }

    private MethodHandle function(String name, MemoryLayout... arguments) {
        return find(name, arguments)
                .orElseThrow(() -> new IllegalStateException("NVML: expected the function " + name + ", got none"));
    }

    private static void call(MethodHandle function, String name, @Nullable Object... arguments) {
        int status;
        try {
            status = (int) function.invokeWithArguments(arguments);
        } catch (Throwable impossible) {
            throw new IllegalStateException(name, impossible);
        }
        if (status != 0) {
            throw new IllegalStateException("NVML: " + name + " returned " + status);
        }
    }

    /**
     * Reads the clocks now.
     *
     * @throws IllegalStateException when the library refuses
     */
    Sample sample() {
        int sm = megahertz(SM);
        int memory = megahertz(MEMORY);
        call(reasons, "nvmlDeviceGetCurrentClocksEventReasons", device, out);
        return new Sample(sm, memory, out.get(HANDLE, 0));
    }

    private int megahertz(int type) {
        call(clock, "nvmlDeviceGetClockInfo", device, type, out);
        return out.get(INT, 0);
    }

    @Override
    public void close() {
        call(function("nvmlShutdown"), "nvmlShutdown");
        arena.close();
    }
}
