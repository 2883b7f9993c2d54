package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Streams and events. */
@Tag("L0")
@Tag("L1")
class StreamTest {
    @Test
    void belongsToItsDevice() {
        try (Device device = Device.open();
                Stream stream = device.openStream()) {
            assertSame(device, stream.device());
            assertEquals("stream of device 0", stream.toString());
            assertNotEquals(device.stream().handle(), stream.handle());
            stream.synchronize();
        }
    }

    @Test
    void refusesWorkOnceClosed() {
        try (Device device = Device.open();
                Event event = device.openEvent();
                Scope scope = device.openScope()) {
            Stream stream = device.openStream();
            Tensor tensor = scope.tensor(DType.FLOAT32, 1);
            stream.close();
            stream.close();
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", stream::handle);
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", stream::synchronize);
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", () -> stream.await(event));
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", () -> event.record(stream));
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", () -> device.openScope(stream));
            assertThrown(IllegalStateException.class, "stream of device 0 is closed", () -> tensor.set(stream, 1f));
        }
    }

    @Test
    void ordersWorkThroughEvents() {
        try (Device device = Device.open();
                Stream copies = device.openStream();
                Event copied = device.openEvent();
                Scope scope = device.openScope();
                HostBuffer in = HostBuffer.pinned(device, 8);
                HostBuffer out = HostBuffer.pinned(device, 8)) {
            in.segment().setAtIndex(ValueLayout.JAVA_FLOAT, 0, 5);
            in.segment().setAtIndex(ValueLayout.JAVA_FLOAT, 1, 6);
            Tensor source = scope.tensor(DType.FLOAT32, 2);
            Tensor target = scope.like(source);
            source.copyFrom(copies, in);
            copied.record(copies);
            device.stream().await(copied);
            target.copyFrom(device.stream(), source);
            target.copyTo(device.stream(), out);
            device.stream().synchronize();
            assertEquals(5, out.segment().getAtIndex(ValueLayout.JAVA_FLOAT, 0));
            assertEquals(6, out.segment().getAtIndex(ValueLayout.JAVA_FLOAT, 1));
            assertTrue(copied.isDone());
        }
    }

    @Test
    void eventsMeasureTime() {
        try (Device device = Device.open();
                Event start = device.openEvent();
                Event end = device.openEvent()) {
            assertTrue(end.isDone(), "nothing was recorded yet");
            start.record(device.stream());
            end.record(device.stream());
            end.synchronize();
            assertTrue(end.isDone());
            float millis = end.millisSince(start);
            assertTrue(millis >= 0 && millis < 60_000, "took " + millis + " ms");
        }
    }

    @Test
    void anEventThatWasNotRecordedMeasuresNothing() {
        try (Device device = Device.open();
                Event start = device.openEvent();
                Event end = device.openEvent()) {
            String text = " was not recorded; call record(stream) where the time is wanted";
            assertThrown(IllegalStateException.class, "millisSince: start" + text, () -> end.millisSince(start));
            start.record(device.stream());
            assertThrown(IllegalStateException.class, "millisSince: this event" + text, () -> end.millisSince(start));
        }
    }

    @Test
    void eventsRefuseWorkOnceClosed() {
        try (Device device = Device.open();
                Event other = device.openEvent()) {
            Event event = device.openEvent();
            event.close();
            event.close();
            String text = "event of device 0 is closed";
            assertThrown(IllegalStateException.class, text, () -> event.record(device.stream()));
            assertThrown(IllegalStateException.class, text, event::synchronize);
            assertThrown(IllegalStateException.class, text, event::isDone);
            assertThrown(IllegalStateException.class, text, () -> other.millisSince(event));
            assertThrown(IllegalStateException.class, text, () -> event.millisSince(other));
            assertThrown(
                    IllegalStateException.class, text, () -> device.stream().await(event));
        }
    }

    @Test
    void refusesAStreamOfAnotherDevice() {
        assumeTrue(Device.count() >= 2, "skipped: this machine has one device");
        try (Device first = Device.open(0);
                Device second = Device.open(1);
                Scope scope = first.openScope()) {
            Tensor tensor = scope.tensor(DType.FLOAT32, 1);
            tensor.set(first.stream(), 1f);
            assertThrown(
                    IllegalArgumentException.class,
                    "onStream: expected a stream of device 0, got one of device 1",
                    () -> first.openScope(second.stream()));
            String text = "stream: expected one of device 0, got stream of device 1";
            assertThrown(IllegalArgumentException.class, text, () -> tensor.set(second.stream(), 2f));
            assertThrown(IllegalArgumentException.class, text, () -> tensor.toFloats(second.stream()));
            assertThrown(IllegalArgumentException.class, text, () -> tensor.zero(second.stream()));
            assertArrayEquals(new float[] {1}, tensor.toFloats(first.stream()));
        }
    }

    @Test
    void aStreamMayAwaitAnEventOfAnotherDeviceButNotRecordIt() {
        assumeTrue(Device.count() >= 2, "skipped: this machine has one device");
        try (Device first = Device.open(0);
                Device second = Device.open(1);
                Event event = first.openEvent()) {
            event.record(first.stream());
            second.stream().await(event);
            second.stream().synchronize();
            assertThrown(
                    IllegalArgumentException.class,
                    "stream: expected one of device 0, got stream of device 1",
                    () -> event.record(second.stream()));
            try (Event other = second.openEvent()) {
                assertThrown(
                        IllegalArgumentException.class,
                        "start: expected an event of device 1, got one of device 0",
                        () -> other.millisSince(event));
            }
        }
    }

    @Test
    void closingItsStreamLeavesTheScopeToClose() {
        try (Device device = Device.open()) {
            Stream stream = device.openStream();
            Scope scope = device.openScope(stream);
            long before = device.heldBytes();
            Tensor tensor = scope.tensor(DType.BYTE, 8 << 20);
            stream.close();
            assertEquals(before + (8 << 20), device.heldBytes(), "the scope has its memory");
            assertThrown(
                    IllegalStateException.class, "stream of device 0 is closed", () -> tensor.copyFrom(stream, tensor));
            scope.close();
            assertFalse(tensor.isLive());
            assertEquals(before, device.heldBytes(), "the scope's memory went back");
        }
    }
}
