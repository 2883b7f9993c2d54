package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.HostWaits;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * A mark in a stream: it is reached when everything enqueued before it is done.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudaEvent_t} of the CUDA runtime.
 */
public final class Event implements AutoCloseable {
    private static final int NOT_READY = 600;

    private final Device device;
    private final MemorySegment handle;
    private final Leaks.@Nullable Trace trace;
    private Place place = Place.NOWHERE;
    private boolean closed;

    /** Where the event was recorded last. */
    private enum Place {
        NOWHERE,
        STREAM,
        GRAPH
    }

    Event(Device device) {
        this.device = device;
        DeviceState state = device.state();
        state.ensureCurrent();
        Status.cuda(CudaRuntime.cudaEventCreate(state.out()), "cudaEventCreate");
        handle = state.out().get(ValueLayout.ADDRESS, 0);
        trace = Leaks.opened("event of " + device);
    }

    /**
     * Puts the mark at the present end of {@code stream}.
     *
     * @throws IllegalArgumentException when the stream belongs to another device
     */
    public void record(Stream stream) {
        if (Given.given("stream", stream).device() != device) {
            throw new IllegalArgumentException("stream: expected one of " + device + ", got " + stream);
        }
        Status.cuda(CudaRuntime.cudaEventRecord(handle(), stream.handle()), "cudaEventRecord");
        place = isCapturing(stream) ? Place.GRAPH : Place.STREAM;
    }

    /** Also streams that have joined another one's capture through an event. */
    private boolean isCapturing(Stream stream) {
        DeviceState state = device.state();
        if (state.capture() == null) {
            return false;
        }
        MemorySegment out = state.out();
        Status.cuda(CudaRuntime.cudaStreamIsCapturing(stream.handle(), out), "cudaStreamIsCapturing");
        return out.get(ValueLayout.JAVA_INT, 0) != CudaRuntime.cudaStreamCaptureStatusNone();
    }

    /**
     * Waits until the mark is reached; returns at once when there is none.
     *
     * @throws IllegalStateException when the mark was recorded inside a capture, or while a stream of one of the thread's devices
     *     captures
     */
    public void synchronize() {
        ensureOutsideGraphs("synchronize");
        MemorySegment mark = handle();
        HostWaits waits = device.state().waits();
        waits.begin();
        int status = CudaRuntime.cudaEventSynchronize(mark);
        waits.end();
        waits.check();
        Status.cuda(status, "cudaEventSynchronize");
    }

    /**
     * Returns whether the mark has been reached, without waiting; true when there is none.
     *
     * @throws IllegalStateException when the mark was recorded inside a capture, or while a stream of one of the thread's devices
     *     captures
     */
    public boolean isDone() {
        ensureOutsideGraphs("isDone");
        int status = CudaRuntime.cudaEventQuery(handle());
        if (status == NOT_READY) {
            // CUDA keeps it as the thread's last error, which TE would take for a failure of its own next call.
            CudaRuntime.cudaGetLastError();
            return false;
        }
        Status.cuda(status, "cudaEventQuery");
        return true;
    }

    /**
     * Returns the milliseconds of device time from {@code start} to this mark.
     *
     * @throws IllegalArgumentException when {@code start} is an event of another device
     * @throws IllegalStateException when one of the marks was not recorded, was recorded inside a capture, or is not reached yet; or
     *     while a stream of one of the thread's devices captures
     */
    public float millisSince(Event start) {
        MemorySegment first = Given.given("start", start).handle();
        MemorySegment last = handle();
        if (start.device.index() != device.index()) {
            throw new IllegalArgumentException(
                    "start: expected an event of " + device + ", got one of " + start.device);
        }
        start.ensureMarks("start");
        ensureMarks("this event");
        MemorySegment out = device.state().out();
        int status = CudaRuntime.cudaEventElapsedTime(out, first, last);
        if (status == NOT_READY) {
            CudaRuntime.cudaGetLastError();
            throw new IllegalStateException(
                    "millisSince: expected marks that the device has reached, got one that it has not; call"
                            + " synchronize() on the later event first");
        }
        Status.cuda(status, "cudaEventElapsedTime");
        return out.get(ValueLayout.JAVA_FLOAT, 0);
    }

    private void ensureMarks(String argument) {
        if (place == Place.NOWHERE) {
            throw new IllegalStateException(
                    "millisSince: " + argument + " was not recorded; call record(stream) where the time is wanted");
        }
        ensureOutsideGraphs("millisSince");
    }

    /** CUDA cannot query an event that is part of a graph, nor any event while a stream captures. */
    private void ensureOutsideGraphs(String call) {
        device.state().ensureThreadNotCapturing(call);
        if (place == Place.GRAPH) {
            throw new IllegalStateException(
                    call + ": expected an event that was recorded outside of a capture, got one that"
                            + " was last recorded inside of one, where it only orders the graph's work; call record(stream) after"
                            + " the launch");
        }
    }

    MemorySegment handle() {
        device.state().ensureCurrent();
        if (closed) {
            throw new IllegalStateException("event of " + device + " is closed");
        }
        return handle;
    }

    /** Destroys the event. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        device.state().ensureCurrent();
        closed = true;
        Leaks.closed(trace);
        device.forget(this);
        Status.cuda(CudaRuntime.cudaEventDestroy(handle), "cudaEventDestroy");
    }
}
