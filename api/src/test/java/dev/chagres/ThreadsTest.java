package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.CuSeqlens;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** A device belongs to one platform thread at a time. */
@Tag("L0")
@Tag("L1")
class ThreadsTest {
    private static final String VIRTUAL =
            "a device is driven by a platform thread: TE, cuBLASLt and cuDNN keep state per OS"
                    + " thread, and a virtual thread may change its carrier; start one with Thread.ofPlatform()";

    @Test
    void anotherThreadIsRefusedAndChangesNothing() throws Throwable {
        try (Device device = Device.open();
                Stream stream = device.openStream();
                Event event = device.openEvent();
                Scope scope = device.openScope();
                HostBuffer buffer = HostBuffer.pinned(device, 16)) {
            Tensor tensor = scope.tensor(DType.FLOAT32, 2);
            tensor.set(device.stream(), 1f, 2);
            Executable[] calls = {
                device::openScope,
                device::openStream,
                device::openEvent,
                device::synchronize,
                device::freeMemory,
                device::close,
                stream::synchronize,
                stream::close,
                () -> stream.await(event),
                () -> event.record(stream),
                event::isDone,
                event::close,
                scope::open,
                scope::restart,
                scope::close,
                () -> scope.tensor(DType.FLOAT32, 1),
                () -> scope.like(tensor),
                tensor::pointer,
                () -> tensor.set(stream, 3f, 4),
                () -> tensor.toFloats(stream),
                () -> tensor.zero(stream),
                () -> tensor.copyTo(stream, buffer),
                () -> HostBuffer.pageable(device, 1),
                buffer::close,
                () -> CuSeqlens.of(scope, 0, 1)
            };
            String text =
                    "device 0 belongs to thread \"" + Thread.currentThread().getName()
                            + "\", called from \"stranger\"; Device.detach() there and Device.attach() here move it";
            on(Thread.ofPlatform().name("stranger"), () -> {
                for (Executable call : calls) {
                    assertThrown(WrongThreadException.class, text, call);
                }
            });
            assertTrue(tensor.isLive());
            assertArrayEquals(new float[] {1, 2}, tensor.toFloats(stream));
        }
    }

    @Test
    void attachMovesTheDeviceAndBack() throws Throwable {
        Thread owner = Thread.currentThread();
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor tensor = scope.tensor(DType.FLOAT32, 1);
            on(
                    Thread.ofPlatform().name("worker"),
                    () -> assertThrown(
                            IllegalStateException.class,
                            "device 0 belongs to thread \"" + owner.getName()
                                    + "\", which is alive and may be inside a call; call Device.detach() there first",
                            device::attach));
            device.detach();
            assertThrown(
                    IllegalStateException.class,
                    "device 0 was detached; Device.attach() moves it to a thread",
                    () -> tensor.toFloats(device.stream()));
            on(Thread.ofPlatform().name("worker"), () -> {
                device.attach();
                tensor.set(device.stream(), 7f);
            });
            assertThrown(
                    WrongThreadException.class,
                    "device 0 belongs to thread \"worker\", called from \"" + owner.getName()
                            + "\"; Device.detach() there and Device.attach() here move it",
                    () -> tensor.toFloats(device.stream()));
            device.attach();
            assertArrayEquals(new float[] {7}, tensor.toFloats(device.stream()));
        }
    }

    @Test
    void aVirtualThreadIsRefused() throws Throwable {
        try (Device device = Device.open()) {
            on(Thread.ofVirtual().name("virtual"), () -> {
                assertThrown(WrongThreadException.class, VIRTUAL, Device::open);
                assertThrown(WrongThreadException.class, VIRTUAL, device::attach);
            });
            device.synchronize();
        }
    }

    @Test
    void contentsOfAHostBufferAreForAnyThread() throws Throwable {
        try (Device device = Device.open();
                Scope scope = device.openScope();
                HostBuffer buffer = HostBuffer.pinned(device, 4)) {
            on(Thread.ofPlatform().name("reader"), () -> buffer.segment().fill((byte) 0x3f));
            Tensor tensor = scope.tensor(DType.BFLOAT16, 2);
            tensor.copyFrom(device.stream(), buffer);
            assertArrayEquals(
                    new float[] {Float.intBitsToFloat(0x3f3f0000), Float.intBitsToFloat(0x3f3f0000)},
                    tensor.toFloats(device.stream()));
        }
    }

    /** Runs {@code body} on another thread and throws here what it throws there. */
    private static void on(Thread.Builder builder, Executable body) throws Throwable {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread thread = builder.start(() -> {
            try {
                body.execute();
            } catch (Throwable thrown) {
                failure.set(thrown);
            }
        });
        thread.join();
        assertFalse(thread.isAlive());
        if (failure.get() != null) {
            throw failure.get();
        }
        assertNull(failure.get());
    }
}
