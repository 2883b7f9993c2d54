package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.bindings.CudaException;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.Inside;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Opening, naming, closing devices; several of them. */
@Tag("L0")
@Tag("L1")
class DeviceTest {
    @Test
    void saysWhatItIs() {
        try (Device device = Device.open()) {
            assertEquals(0, device.index());
            assertEquals("device 0", device.toString());
            assertSame(Provider.current(), device.provider());
            assertFalse(device.name().isBlank());
            assertTrue(device.multiprocessorCount() > 0);
            assertTrue(device.computeCapability() >= 70, "compute capability " + device.computeCapability());
            assertTrue(device.freeMemory() > 0);
            assertTrue(device.totalMemory() >= device.freeMemory());
        }
    }

    @Test
    void refusesAnIndexOutOfRange() {
        int last = Device.count() - 1;
        for (int index : new int[] {-1, last + 1, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "index: expected a device from 0 to " + last + ", got " + index,
                    () -> Device.open(index));
        }
    }

    @Test
    void closesTwice() {
        Device device = Device.open();
        device.close();
        device.close();
        assertEquals("device 0", device.toString(), "what costs no call is still answered");
    }

    @Test
    void refusesWorkOnceClosed() {
        Device device = Device.open();
        Stream stream = device.stream();
        device.close();
        Executable[] calls = {
            device::openScope,
            () -> device.openScope(stream),
            device::openStream,
            device::openEvent,
            device::synchronize,
            device::freeMemory,
            device::totalMemory,
            device::attach,
            stream::synchronize
        };
        for (Executable call : calls) {
            assertThrown(IllegalStateException.class, "device 0 is closed", call);
        }
    }

    @Test
    void closesWhatWasOpenedFromIt() {
        Device device = Device.open();
        Stream stream = device.openStream();
        Event event = device.openEvent();
        Scope scope = device.openScope(stream);
        Tensor tensor = scope.tensor(DType.FLOAT32, 4);
        device.close();
        assertFalse(tensor.isLive());
        assertThrown(IllegalStateException.class, "device 0 is closed", tensor::pointer);
        assertThrown(IllegalStateException.class, "device 0 is closed", event::synchronize);
        scope.close();
        event.close();
        stream.close();
    }

    @Test
    void losesNoMemory() {
        try (Device watch = Device.open()) {
            assertEquals(0, heldAfterUse());
            long free = watch.freeMemory();
            assertEquals(0, heldAfterUse());
            // Free memory of a GPU is what other programs leave, too; that of the reference is this process's alone.
            if (watch.provider() == Provider.REFERENCE) {
                assertEquals(free, watch.freeMemory());
            }
        }
    }

    private static long heldAfterUse() {
        Device device = Device.open();
        try (device;
                Scope scope = device.openScope()) {
            scope.tensor(DType.BYTE, 100L << 20).zero(device.stream());
            Inside.workspace(scope.stream()).products();
            Inside.scratch(scope.stream()).tensor(DType.FLOAT32, 1000);
            device.openScope(device.openStream()).tensor(DType.FLOAT32, 1000);
            assertTrue(device.heldBytes() >= 100L << 20);
        }
        return device.heldBytes();
    }

    @Test
    void remembersTheMostMemoryThatItHeld() {
        try (Device device = Device.open()) {
            try (Scope scope = device.openScope()) {
                scope.tensor(DType.BYTE, 10L << 20);
            }
            long peak = device.peakHeldBytes();
            assertTrue(peak >= 10L << 20, "peak " + peak);
            try (Scope scope = device.openScope()) {
                scope.tensor(DType.BYTE, 1);
            }
            assertEquals(peak, device.peakHeldBytes());
        }
    }

    /** Both streams are destroyed behind the device's back: closing meets two errors, tells both and frees the rest. */
    @Test
    void keepsLaterFailuresOfClosingAsSuppressed() {
        assumeTrue(
                Provider.current() == Provider.REFERENCE, "skipped: CUDA may crash when a stream is destroyed twice");
        Device device = Device.open();
        Stream second = device.openStream();
        CudaRuntime.cudaStreamDestroy(device.stream().handle());
        CudaRuntime.cudaStreamDestroy(second.handle());
        CudaException thrown = assertThrows(CudaException.class, device::close);
        assertEquals("cudaStreamSynchronize", thrown.function());
        assertEquals(1, thrown.getSuppressed().length);
        device.close();
        assertThrown(IllegalStateException.class, "device 0 is closed", device::synchronize);
    }

    @Test
    void oneThreadDrivesSeveralDevices() {
        assumeTrue(Device.count() >= 2, "skipped: this machine has one device");
        try (Device first = Device.open(0);
                Device second = Device.open(1);
                Scope onFirst = first.openScope();
                Scope onSecond = second.openScope()) {
            Tensor a = onFirst.tensor(DType.FLOAT32, 3);
            Tensor b = onSecond.tensor(DType.FLOAT32, 3);
            a.set(first.stream(), 1f, 2, 3);
            b.set(second.stream(), 4f, 5, 6);
            assertNotEquals(a.pointer().address(), b.pointer().address());
            assertArrayEquals(new float[] {1, 2, 3}, a.toFloats(first.stream()));
            assertArrayEquals(new float[] {4, 5, 6}, b.toFloats(second.stream()));
            assertEquals(1, second.index());
        }
    }
}
