package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;

/**
 * The workspace that {@link Topk} wants, one a device: TE says so when it is asked, and the answer is remembered until keys of
 * another shape come. It is the same for both types.
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

    /** Returns whether the last {@link #remember} was of keys of this shape. */
    boolean isKnown(Tensor keys) {
        return keys.size(0) == rows && keys.size(1) == columns;
    }

    /** Remembers what was asked for through {@link Workspace#asking}. */
    void remember(Tensor keys, Workspace workspace) {
        rows = keys.size(0);
        columns = keys.size(1);
        bytes = workspace.asked();
    }

    /** Returns the handle of as much memory as the remembered call wants. */
    MemorySegment provided(Workspace workspace) {
        return workspace.provided(bytes);
    }

    @Override
    public void close() {
        // Numbers alone: there is nothing to give back.
    }
}
