package dev.chagres.jmh.states;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.openjdk.jmh.results.Result;

/** The clocks of a GPU that a library made up in Java tells, called as the driver's would be. */
@Tag("L0")
class ClockSamplerTest {
    /** A library of one GPU, 0000:1B:00.0. */
    @SuppressWarnings("unused") // The functions are found by their names.
    private static final class MadeUp {
        final Arena arena = Arena.ofShared();
        final Map<String, MemorySegment> functions = new HashMap<>();
        final Deque<Long> reasons = new ArrayDeque<>();
        final StringBuilder calls = new StringBuilder();
        int status;

        MadeUp(String reasonsFunction) throws ReflectiveOperationException {
            add("nvmlInit_v2", "init");
            add("nvmlShutdown", "shutdown");
            add("nvmlDeviceGetHandleByPciBusId_v2", "handle", ValueLayout.ADDRESS, ValueLayout.ADDRESS);
            add("nvmlDeviceGetClockInfo", "clock", ValueLayout.JAVA_LONG, ValueLayout.JAVA_INT, ValueLayout.ADDRESS);
            add(reasonsFunction, "reasons", ValueLayout.JAVA_LONG, ValueLayout.ADDRESS);
        }

        private void add(String name, String method, MemoryLayout... arguments) throws ReflectiveOperationException {
            FunctionDescriptor descriptor = FunctionDescriptor.of(ValueLayout.JAVA_INT, arguments);
            MethodType type = descriptor.toMethodType();
            functions.put(
                    name,
                    Linker.nativeLinker()
                            .upcallStub(MethodHandles.lookup().bind(this, method, type), descriptor, arena));
        }

        SymbolLookup lookup() {
            return name -> java.util.Optional.ofNullable(functions.get(name));
        }

        int init() {
            calls.append("init ");
            return status;
        }

        int shutdown() {
            calls.append("shutdown");
            return 0;
        }

        int handle(MemorySegment id, MemorySegment into) {
            calls.append(id.reinterpret(32).getString(0)).append(' ');
            into.reinterpret(8).set(ValueLayout.JAVA_LONG, 0, 77);
            return 0;
        }

        int clock(long device, int type, MemorySegment into) {
            into.reinterpret(4).set(ValueLayout.JAVA_INT, 0, device == 77 ? 1000 * type : 0);
            return 0;
        }

        int reasons(long device, MemorySegment into) {
            into.reinterpret(8).set(ValueLayout.JAVA_LONG, 0, reasons.removeFirst());
            return 0;
        }
    }

    private static double score(List<Result<?>> results, String label) {
        return results.stream()
                .filter(result -> result.getLabel().equals(label))
                .findFirst()
                .orElseThrow()
                .getScore();
    }

    @Test
    void clocksAndWhatHoldsThemDown() throws ReflectiveOperationException {
        for (String name :
                List.of("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")) {
            MadeUp library = new MadeUp(name);
            library.reasons.addAll(List.of(0L, 1L, 0x4L, 0x48L));
            List<Result<?>> results;
            try (Nvml nvml = new Nvml(library.arena, library.lookup(), "0000:1B:00.0")) {
                ClockSampler sampler = new ClockSampler(() -> nvml);
                for (int i = 0; i < 4; i++) {
                    sampler.sample();
                }
                results = sampler.end();
            }
            assertEquals("init 0000:1B:00.0 shutdown", library.calls.toString());
            assertEquals(1000, score(results, "device.clock"));
            assertEquals(2000, score(results, "device.clock.memory"));
            assertEquals(50, score(results, "device.throttled"));
            assertEquals(25, score(results, "device.throttled.power"));
            assertEquals(25, score(results, "device.throttled.heat"));
        }
    }

    @Test
    void aThreadReadsDuringAnIteration() throws ReflectiveOperationException {
        MadeUp library = new MadeUp("nvmlDeviceGetCurrentClocksEventReasons");
        for (int i = 0; i < 10_000; i++) {
            library.reasons.add(0L);
        }
        try (Nvml nvml = new Nvml(library.arena, library.lookup(), "0000:1B:00.0")) {
            ClockSampler sampler = new ClockSampler(() -> nvml);
            sampler.begin();
            while (library.reasons.size() == 10_000) {
                Thread.onSpinWait();
            }
            assertEquals(0, score(sampler.end(), "device.throttled"));
        }
    }

    @Test
    void withoutTheLibraryNothingIsRead() throws ReflectiveOperationException {
        ClockSampler sampler = new ClockSampler(() -> {
            throw new IllegalArgumentException("Cannot open library: " + Nvml.LIBRARY);
        });
        sampler.sample();
        assertTrue(sampler.end().isEmpty());
        MadeUp library = new MadeUp("nvmlDeviceGetCurrentClocksEventReasons");
        library.status = 9;
        assertEquals(
                "NVML: nvmlInit_v2 returned 9",
                assertThrows(
                                IllegalStateException.class,
                                () -> new Nvml(library.arena, library.lookup(), "0000:1B:00.0"))
                        .getMessage());
        library.status = 0;
        library.functions.remove("nvmlDeviceGetClockInfo");
        assertEquals(
                "NVML: expected the function nvmlDeviceGetClockInfo, got none",
                assertThrows(
                                IllegalStateException.class,
                                () -> new Nvml(library.arena, library.lookup(), "0000:1B:00.0"))
                        .getMessage());
        library.arena.close();
    }
}
