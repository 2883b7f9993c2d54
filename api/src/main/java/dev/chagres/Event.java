package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * A mark in a stream: done when everything enqueued before it is done.
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
    private boolean closed;

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
    }

    /** Waits until the mark is reached. */
    public void synchronize() {
        device.state().ensureNotCapturing("synchronize");
        Status.cuda(CudaRuntime.cudaEventSynchronize(handle()), "cudaEventSynchronize");
    }

    /** Returns whether the mark has been reached, without waiting. */
    public boolean isDone() {
        device.state().ensureNotCapturing("isDone");
        int status = CudaRuntime.cudaEventQuery(handle());
        if (status == NOT_READY) {
            // It is kept as the thread's last error, in which TE would see a failure of its own next call.
            CudaRuntime.cudaGetLastError();
            return false;
        }
        Status.cuda(status, "cudaEventQuery");
        return true;
    }

    /** Returns the milliseconds of device time from {@code start} to this mark; both must have been reached. */
    public float millisSince(Event start) {
        MemorySegment first = Given.given("start", start).handle();
        MemorySegment out = device.state().out();
        Status.cuda(CudaRuntime.cudaEventElapsedTime(out, first, handle()), "cudaEventElapsedTime");
        return out.get(ValueLayout.JAVA_FLOAT, 0);
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
