package dev.chagres.nccl;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The thread's capture mode, which decides what CUDA allows a thread to call while one of its streams captures. NCCL connects ranks in the
 * first call that needs it, and then asks CUDA for memory and for access to other devices.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudaThreadExchangeStreamCaptureMode} of the CUDA runtime.
 */
final class CaptureMode {
    /** {@code cudaStreamCaptureModeRelaxed}. */
    private static final int RELAXED = 2;

    private static final int NONE = -1;

    private final DeviceState state;
    /** The thread's mode before {@link #relax}; NONE if that was not called. */
    private int before = NONE;

    CaptureMode(DeviceState state) {
        this.state = state;
    }

    /** Allows the thread every call, until {@link #restore}. */
    void relax() {
        before = exchange(RELAXED);
    }

    /** Restores the thread's mode before {@link #relax}; does nothing if that was not called. */
    void restore() {
        if (before != NONE) {
            var _ = exchange(before);
            before = NONE;
        }
    }

    /** Sets the thread's mode and returns the one before. */
    private int exchange(int mode) {
        MemorySegment inOut = state.out();
        inOut.set(ValueLayout.JAVA_INT, 0, mode);
        Status.cuda(CudaRuntime.cudaThreadExchangeStreamCaptureMode(inOut), "cudaThreadExchangeStreamCaptureMode");
        return inOut.get(ValueLayout.JAVA_INT, 0);
    }
}
