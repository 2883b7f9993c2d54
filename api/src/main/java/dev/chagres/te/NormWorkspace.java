package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The workspace of one function of normalization.h. Called with an unset workspace the function reports the size it needs; called with
 * memory it runs. The size is cached until shape or types change, but only for tensors that all begin at multiples of 16 bytes, as those of
 * a scope do: over others TE runs another kernel, which needs another size.
 *
 * <p>A function is called in a loop, {@code do function(space.memory()) while (space.wasAsked())}.
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
    /** What {@link #rows} will be when the size is known. */
    private long askedRows;

    private boolean asks;
    private @Nullable Workspace workspace;

    /**
     * Begins a norm.
     *
     * @param addresses of all tensors, combined by {@code |}
     */
    NormWorkspace of(
            Tensor x, Tensor newGamma, DType newOutput, Normalization.Gamma newKind, long addresses, Stream stream) {
        workspace = Inside.workspace(stream);
        int newMultiprocessors = Inside.state(stream).multiprocessors().ofTransformerEngineNorms();
        boolean isAligned = addresses % ALIGNMENT == 0;
        asks = !isAligned
                || x.size(0) != rows
                || x.size(1) != columns
                || x.dtype() != input
                || newGamma.dtype() != gamma
                || newOutput != output
                || newKind != kind
                || newMultiprocessors != multiprocessors;
        if (asks) {
            rows = UNKNOWN;
            askedRows = isAligned ? x.size(0) : UNKNOWN;
            columns = x.size(1);
            input = x.dtype();
            gamma = newGamma.dtype();
            output = newOutput;
            kind = newKind;
            multiprocessors = newMultiprocessors;
        }
        return this;
    }

    /** Returns how many multiprocessors the norm may use. */
    int multiprocessors() {
        return multiprocessors;
    }

    /** Returns the handle for the next call: unset where the size is unknown, else of memory of that size. */
    MemorySegment memory() {
        Workspace present = Checks.given("workspace", workspace);
        return asks ? present.asking() : present.provided(bytes);
    }

    /** Returns whether the last call only reported the size, and keeps that. */
    boolean wasAsked() {
        if (!asks) {
            return false;
        }
        asks = false;
        bytes = Checks.given("workspace", workspace).asked();
        rows = askedRows;
        return true;
    }

    /** The workspaces of the five functions, kept per device. */
    static final class All implements AutoCloseable {
        static final DeviceState.Attachment<All> ATTACHMENT = new DeviceState.Attachment<>(device -> new All());

        final NormWorkspace layernormFwd = new NormWorkspace();
        final NormWorkspace layernormBwd = new NormWorkspace();
        final NormWorkspace rmsnormFwd = new NormWorkspace();
        final NormWorkspace rmsnormBwd = new NormWorkspace();
        final NormWorkspace rmsnormBwdAdd = new NormWorkspace();

        static All of(Stream stream) {
            return Inside.state(stream).get(ATTACHMENT);
        }

        @Override
        public void close() {
            // Nothing to free: there are only numbers.
        }
    }
}
