package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code HostToDevice}: copies that travel as arguments of a kernel. */
@Tag("L0")
@Tag("L1")
class HostToDeviceTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Below, at and above the bytes that one kernel takes. */
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 255, 1023, 1024, 1025, 5000})
    void copiesWhatStoodThereAtTheCall(int count) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(ValueLayout.JAVA_INT, Math.max(1, count));
            int[] values = open.random().ints(count).toArray();
            MemorySegment.copy(values, 0, host, ValueLayout.JAVA_INT, 0, count);
            Tensor target = open.scope().tensor(DType.INT32, count);
            HostToDevice.copyHostToDeviceViaKernel(host, target, open.stream());
            host.fill((byte) -1);
            assertArrayEquals(values, target.toInts(open.stream()));
        }
    }

    @Test
    void refusals() {
        Tensor target = open.scope().tensor(DType.INT32, 3);
        try (Arena arena = Arena.ofConfined()) {
            assertThrown(
                    IllegalArgumentException.class,
                    "host: expected native memory of at least 12 bytes, got 8 bytes",
                    () -> HostToDevice.copyHostToDeviceViaKernel(arena.allocate(8), target, open.stream()));
        }
        assertThrown(
                IllegalArgumentException.class,
                "host: expected native memory of at least 12 bytes, got 16 bytes on the Java heap",
                () -> HostToDevice.copyHostToDeviceViaKernel(MemorySegment.ofArray(new int[4]), target, open.stream()));
        MemorySegment closed;
        try (Arena arena = Arena.ofConfined()) {
            closed = arena.allocate(16);
        }
        String unfit = "expected memory that is open to thread \""
                + Thread.currentThread().getName() + "\", got a segment whose arena is closed";
        assertThrown(
                IllegalStateException.class,
                "host: " + unfit,
                () -> HostToDevice.copyHostToDeviceViaKernel(closed, target, open.stream()));
        assertThrown(IllegalStateException.class, "source: " + unfit, () -> target.copyFrom(open.stream(), closed));
        assertThrown(IllegalStateException.class, "target: " + unfit, () -> target.copyTo(open.stream(), closed));
        assertThrown(
                NullPointerException.class,
                "host: expected a value, got null",
                () -> HostToDevice.copyHostToDeviceViaKernel(null, target, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(8);
            Tensor target = open.scope().tensor(DType.FLOAT32, 2);
            Allocation.assertNone("copy", () -> HostToDevice.copyHostToDeviceViaKernel(host, target, open.stream()));
        }
    }
}
