package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Caches the workspace size of quantizing with a bias gradient, which TE reports, until shape, type or activation change.
 *
 * <p>Threading: the device's thread.
 */
final class DbiasWorkspace {
    private long rows = -1;
    private long columns;
    private @Nullable DType dtype;
    private @Nullable Activation activation;
    private long bytes;

    /** Returns whether the cached size is that of this call. */
    boolean isKnown(Tensor input, @Nullable Activation newActivation) {
        return input.size(0) == rows
                && input.size(1) == columns
                && input.dtype() == dtype
                && newActivation == activation;
    }

    /** Caches the size that TE asked for through {@link Workspace#asking}. */
    void remember(Tensor input, @Nullable Activation newActivation, Workspace workspace) {
        rows = input.size(0);
        columns = input.size(1);
        dtype = input.dtype();
        activation = newActivation;
        bytes = workspace.asked();
    }

    /** Returns the handle of memory of the cached size. */
    MemorySegment provided(Workspace workspace) {
        return workspace.provided(bytes);
    }
}
