package dev.chagres.cudnn;

import dev.chagres.Stream;
import dev.chagres.bindings.BackendCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * cuDNN's handle of one device, and the plans that are open on it, which are closed with it.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudnnHandle_t} of {@code cudnn_graph.h}.
 */
final class CudnnHandle implements AutoCloseable {
    static final DeviceState.Attachment<CudnnHandle> OF_DEVICE = new DeviceState.Attachment<>(CudnnHandle::new);

    final long handle;
    private final List<ExecutionPlan> plans = new ArrayList<>();
    /** The stream that the handle was told of. */
    private @Nullable Stream last;

    private CudnnHandle(DeviceState device) {
        device.ensureCurrent();
        device.ensureThreadNotCapturing("plan");
        Status.cudnn(Cudnn.cudnnCreate(device.out()), "cudnnCreate");
        handle = device.out().get(ValueLayout.JAVA_LONG, 0);
    }

    void add(ExecutionPlan plan) {
        plans.add(plan);
    }

    void remove(ExecutionPlan plan) {
        plans.remove(plan);
    }

    /** Enqueues a plan on an open stream. */
    void execute(Stream stream, long plan, long pack) {
        MemorySegment onStream = stream.handle();
        if (stream != last) { // By object: another may have been opened at the address of a closed one.
            last = null;
            Status.cudnn(BackendCalls.cudnnSetStream(handle, onStream), "cudnnSetStream");
            last = stream;
        }
        Status.cudnn(BackendCalls.cudnnBackendExecute(handle, plan, pack), "cudnnBackendExecute");
    }

    /** Closes the plans, newest first, and destroys the handle. */
    @Override
    public void close() {
        try {
            Closing.newestFirst(plans);
        } finally {
            Status.cudnn(BackendCalls.cudnnDestroy(handle), "cudnnDestroy");
        }
    }
}
