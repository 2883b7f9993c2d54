package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.CudaException;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Host memory for copies. */
@Tag("L0")
@Tag("L1")
class HostBufferTest {
    @Test
    void holdsItsBytes() {
        try (Device device = Device.open();
                HostBuffer pinned = HostBuffer.pinned(device, 1001);
                HostBuffer pageable = HostBuffer.pageable(device, 1001);
                HostBuffer empty = HostBuffer.pinned(device, 0)) {
            assertEquals(1001, pinned.segment().byteSize());
            assertEquals(1001, pageable.segment().byteSize());
            assertEquals(0, empty.segment().byteSize());
            pinned.segment().set(ValueLayout.JAVA_BYTE, 1000, (byte) 7);
            assertEquals(7, pinned.segment().get(ValueLayout.JAVA_BYTE, 1000));
            assertThrows(IndexOutOfBoundsException.class, () -> pinned.segment().get(ValueLayout.JAVA_BYTE, 1001));
        }
    }

    @Test
    void refusesANegativeSize() {
        try (Device device = Device.open()) {
            String text = "byteSize: expected no negative size, got -1";
            assertThrown(IllegalArgumentException.class, text, () -> HostBuffer.pinned(device, -1));
            assertThrown(IllegalArgumentException.class, text, () -> HostBuffer.pageable(device, -1));
        }
    }

    @Test
    void isClosedOnce() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            HostBuffer buffer = HostBuffer.pinned(device, 4);
            MemorySegment segment = buffer.segment();
            buffer.close();
            buffer.close();
            assertThrown(IllegalStateException.class, "host buffer is closed", buffer::segment);
            assertThrows(
                    IllegalStateException.class, () -> segment.get(ValueLayout.JAVA_INT, 0), "a segment kept aside");
            Tensor tensor = scope.tensor(DType.FLOAT32, 1);
            assertThrown(
                    IllegalStateException.class,
                    "host buffer is closed",
                    () -> tensor.copyFrom(device.stream(), buffer));
        }
    }

    @Test
    void outlivesItsDevice() {
        Device device = Device.open();
        HostBuffer pinned = HostBuffer.pinned(device, 4);
        HostBuffer pageable = HostBuffer.pageable(device, 4);
        device.close();
        pinned.segment().set(ValueLayout.JAVA_INT, 0, 1);
        pinned.close();
        pageable.close();
    }

    @Test
    void tellsWhenMemoryIsOut() {
        int before = Leaks.open().size();
        try (Device device = Device.open()) {
            CudaException thrown = assertThrows(CudaException.class, () -> HostBuffer.pinned(device, 1L << 55));
            assertEquals("cudaHostAlloc", thrown.function());
            assertTrue(
                    thrown.getMessage()
                            .contains(
                                    "36028797018963968 bytes of page-locked memory of the host were asked for; the host has"
                                            + " too little free, or the process may not lock so much (ulimit -l)"),
                    thrown.getMessage());
            if (Provider.current() == Provider.REFERENCE) {
                assertEquals("cudaErrorMemoryAllocation", thrown.codeName());
            }
            for (long size : new long[] {1L << 55, Long.MAX_VALUE}) {
                assertEquals(
                        "byteSize: expected no more bytes than the host has free, got " + size,
                        assertThrows(IllegalArgumentException.class, () -> HostBuffer.pageable(device, size))
                                .getMessage());
            }
        }
        assertEquals(before, Leaks.open().size());
    }
}
