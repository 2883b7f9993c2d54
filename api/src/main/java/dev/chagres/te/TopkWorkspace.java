package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;

/**
 * Caches, per device, the workspace size of {@link Topk}, which TE reports, until the shape changes. It is the same for both types.
 *
 * <p>Threading: the device's thread.
 */
final class TopkWorkspace implements AutoCloseable {
    static final DeviceState.Attachment<TopkWorkspace> ATTACHMENT =
            new DeviceState.Attachment<>(device -> new TopkWorkspace());

    private long rows = -1;
    private long columns;
    private long bytes;

    private TopkWorkspace() {}

    /** Returns whether the cached size is that of this shape. */
    boolean isKnown(Tensor keys) {
        return keys.size(0) == rows && keys.size(1) == columns;
    }

    /** Caches the size that TE asked for through {@link Workspace#asking}. */
    void remember(Tensor keys, Workspace workspace) {
        rows = keys.size(0);
        columns = keys.size(1);
        bytes = workspace.asked();
    }

    /** Returns the handle of memory of the cached size. */
    MemorySegment provided(Workspace workspace) {
        return workspace.provided(bytes);
    }

    @Override
    public void close() {
        // Nothing to free: there are only numbers.
    }
}
