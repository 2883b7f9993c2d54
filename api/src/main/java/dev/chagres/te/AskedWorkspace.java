package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * The workspace of a function of TE's that reports the size it needs when it is called with an unset workspace, and runs when it is called
 * with memory. The sizes of its last few different calls are cached, by what they depend on, so that TE is not asked again for each layer.
 *
 * <p>A function is called in a loop, {@code do function(space.memory()) while (space.wasAsked())}.
 *
 * <p>Threading: the device's thread.
 */
final class AskedWorkspace {
    /** The functions that ask. */
    enum Function {
        LAYERNORM_FWD,
        LAYERNORM_BWD,
        RMSNORM_FWD,
        RMSNORM_BWD,
        RMSNORM_BWD_ADD,
        QUANTIZE_DBIAS,
        FP8_TRANSPOSE_DBIAS,
        TOPK,
        FUSED_ATTN_FWD,
        FUSED_ATTN_BWD
    }

    private static final int MOST = 4;
    private static final int NUMBERS = 16;
    private static final long UNKNOWN = -1;

    private final @Nullable Object[] subjects = new Object[MOST];
    private final long[][] numbers = new long[MOST][NUMBERS];
    private final long[] bytes = new long[MOST];
    private int next;
    /** What the size of the current call depends on. */
    private final long[] current = new long[NUMBERS];

    private int count;
    private @Nullable Object subject;
    private @Nullable Workspace workspace;
    private boolean asks;

    private AskedWorkspace() {
        Arrays.fill(bytes, UNKNOWN);
    }

    /** Begins a call, of which the size depends on {@code subject}, compared by equals, and on numbers that follow. */
    static AskedWorkspace of(Function function, @Nullable Object subject, Stream stream) {
        AskedWorkspace space = Inside.state(stream).get(All.ATTACHMENT).each[function.ordinal()];
        space.workspace = Inside.workspace(stream);
        space.subject = subject;
        space.count = 0;
        return space;
    }

    AskedWorkspace with(long number) {
        current[count++] = number;
        return this;
    }

    AskedWorkspace withMatrix(Tensor matrix) {
        return with(matrix.size(0)).with(matrix.size(1)).with(matrix.dtype().ordinal());
    }

    /** Returns whether the size is cached. */
    boolean isKnown() {
        return known() != UNKNOWN;
    }

    private long known() {
        for (int i = 0; i < MOST; i++) {
            if (bytes[i] != UNKNOWN && Objects.equals(subject, subjects[i]) && Arrays.equals(current, numbers[i])) {
                return bytes[i];
            }
        }
        return UNKNOWN;
    }

    /** Returns the handle for the next call: unset where the size is unknown, else of memory of that size. */
    MemorySegment memory() {
        Workspace present = Checks.given("workspace", workspace);
        long size = known();
        asks = size == UNKNOWN;
        return asks ? present.asking() : present.provided(size);
    }

    /** Returns whether the last call only reported the size, which is then kept. */
    boolean wasAsked() {
        if (asks) {
            keep();
        }
        return asks;
    }

    /** Keeps the size that the last call reported, in place of the oldest. */
    void keep() {
        subjects[next] = subject;
        System.arraycopy(current, 0, numbers[next], 0, NUMBERS);
        bytes[next] = Checks.given("workspace", workspace).asked();
        next = (next + 1) % MOST;
    }

    /** Those of all functions, kept per device. */
    private static final class All {
        static final DeviceState.Attachment<All> ATTACHMENT = new DeviceState.Attachment<>(device -> new All());

        private final AskedWorkspace[] each = new AskedWorkspace[Function.values().length];

        private All() {
            Arrays.setAll(each, i -> new AskedWorkspace());
        }
    }
}
