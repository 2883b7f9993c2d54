package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Caches the workspace size of one function of normalization.h, which TE reports, until shape or types change. Only for tensors that
 * all begin at multiples of 16 bytes, as those of a scope do: over others TE runs another kernel, which needs another size.
 *
 * <p>Threading: the device's thread.
 */
final class NormWorkspace {
    private static final int ALIGNMENT = 16;
    private static final long UNKNOWN = -1;

    private long rows = UNKNOWN;
    private long columns;
    private @Nullable DType input;
    private @Nullable DType gamma;
    private @Nullable DType output;
    private Normalization.@Nullable Gamma kind;
    private int multiprocessors;
    private long bytes;

    /**
     * Returns whether the cached size is that of such a norm on as many multiprocessors.
     *
     * @param addresses of all tensors, combined by {@code |}
     */
    boolean isKnown(
            Tensor x,
            Tensor newGamma,
            DType newOutput,
            Normalization.Gamma newKind,
            int newMultiprocessors,
            long addresses) {
        return addresses % ALIGNMENT == 0
                && x.size(0) == rows
                && x.size(1) == columns
                && x.dtype() == input
                && newGamma.dtype() == gamma
                && newOutput == output
                && newKind == kind
                && newMultiprocessors == multiprocessors;
    }

    /**
     * Keeps the size that TE asked for through {@link Workspace#asking}: for the next {@link #provided}, and for later norms if all
     * tensors are aligned.
     */
    void remember(
            Tensor x,
            Tensor newGamma,
            DType newOutput,
            Normalization.Gamma newKind,
            int newMultiprocessors,
            long addresses,
            Workspace workspace) {
        rows = addresses % ALIGNMENT == 0 ? x.size(0) : UNKNOWN;
        columns = x.size(1);
        input = x.dtype();
        gamma = newGamma.dtype();
        output = newOutput;
        kind = newKind;
        multiprocessors = newMultiprocessors;
        bytes = workspace.asked();
    }

    /** Returns the handle of memory of the cached size. */
    MemorySegment provided(Workspace workspace) {
        return workspace.provided(bytes);
    }

    /** The workspaces of the five functions, kept per device. */
    static final class All implements AutoCloseable {
        static final DeviceState.Attachment<All> ATTACHMENT = new DeviceState.Attachment<>(device -> new All());

        final NormWorkspace layernormFwd = new NormWorkspace();
        final NormWorkspace layernormBwd = new NormWorkspace();
        final NormWorkspace rmsnormFwd = new NormWorkspace();
        final NormWorkspace rmsnormBwd = new NormWorkspace();
        final NormWorkspace rmsnormBwdAdd = new NormWorkspace();

        @Override
        public void close() {
            // Nothing to free: there are only numbers.
        }
    }
}
