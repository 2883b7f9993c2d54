package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.internal.memory.Leaks;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The gate that all other tests rely on. */
@Tag("L0")
@Tag("L1")
class LeakGateTest {
    @Test
    void namesWhatIsOpenAndWhereItWasMade() {
        Set<Leaks.Trace> before = Set.copyOf(Leaks.open());
        try (Device device = Device.open();
                Scope scope = device.openScope();
                Event event = device.openEvent();
                HostBuffer pinned = HostBuffer.pinned(device, 3);
                HostBuffer pageable = HostBuffer.pageable(device, 5)) {
            AssertionError error = assertThrows(AssertionError.class, () -> LeakGate.check(before, Leaks.open()));
            assertEquals(
                    "left open: "
                            + List.of(
                                    "device 0",
                                    "event of device 0",
                                    "pageable host buffer of 5 bytes",
                                    "pinned host buffer of 3 bytes",
                                    "scope of device 0",
                                    "stream of device 0")
                            + "; the stacks show where each was made",
                    error.getMessage());
            assertEquals(6, error.getSuppressed().length);
            for (Throwable made : error.getSuppressed()) {
                assertTrue(
                        Arrays.stream(made.getStackTrace())
                                .anyMatch(frame -> frame.getClassName().equals(LeakGateTest.class.getName())),
                        () -> "no frame of this test in " + Arrays.toString(made.getStackTrace()));
            }
        }
        LeakGate.check(before, Leaks.open());
    }
}
