package dev.chagres.nccl;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * What CUDA allows a thread to call while a stream of it captures. NCCL connects ranks in the first call that needs it, and asks CUDA
 * for memory and for access to other devices then.
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
    /** The thread's mode before {@link #relax}; NONE where it is that mode. */
    private int before = NONE;

    CaptureMode(DeviceState state) {
        this.state = state;
    }

    /** Allows the thread every call, until {@link #restore}. */
    void relax() {
        before = exchange(RELAXED);
    }

    /** Sets the thread's mode before {@link #relax} again; nothing where that was not called. */
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
