package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The workspace that quantizing with a bias gradient wants: TE says so when it is asked, and the answer is remembered until a
 * matrix of another shape or type comes, or another activation.
 *
 * <p>Threading: the device's thread.
 */
final class DbiasWorkspace {
    private long rows = -1;
    private long columns;
    private @Nullable DType dtype;
    private @Nullable Activation activation;
    private long bytes;

    /** Returns whether the last {@link #remember} was of a call like this one. */
    boolean isKnown(Tensor input, @Nullable Activation newActivation) {
        return input.size(0) == rows
                && input.size(1) == columns
                && input.dtype() == dtype
                && newActivation == activation;
    }

    /** Remembers what was asked for through {@link Workspace#asking}. */
    void remember(Tensor input, @Nullable Activation newActivation, Workspace workspace) {
        rows = input.size(0);
        columns = input.size(1);
        dtype = input.dtype();
        activation = newActivation;
        bytes = workspace.asked();
    }

    /** Returns the handle of as much memory as the remembered call wants. */
    MemorySegment provided(Workspace workspace) {
        return workspace.provided(bytes);
    }
}
