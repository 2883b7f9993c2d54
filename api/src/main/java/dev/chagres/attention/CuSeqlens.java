package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;
import dev.chagres.internal.Transfer;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Cumulative sequence lengths: sequence i has the tokens from {@code offsets[i]} up to {@code offsets[i + 1]}.
 *
 * <p>Kernels trust these numbers without a check, so they are checked here: they start at 0 and never decrease. That they
 * end at the token count is checked where they are used.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cu_seqlens} in TE's {@code fused_attn.h}.
 */
public final class CuSeqlens {
    private final Tensor offsets;
    private int sequences;
    private int tokens;
    private int longest;
    /** Which time of handing out the offsets' memory this is the content of. */
    private int issue;

    private CuSeqlens(Tensor offsets) {
        this.offsets = offsets;
    }

    /**
     * Copies offsets to the device and waits.
     *
     * @param scope owns the device copy
     * @param offsets 0, then the end of each sequence
     * @throws IllegalArgumentException when there are none, the first is not 0, or they decrease
     */
    public static CuSeqlens of(Scope scope, int... offsets) {
        try (HostBuffer host = HostBuffer.pageable(scope.device(), 4L * offsets.length)) {
            MemorySegment.copy(offsets, 0, host.segment(), ValueLayout.JAVA_INT, 0, offsets.length);
            CuSeqlens copy = copyOf(scope, host.segment(), offsets.length - 1);
            scope.stream().synchronize();
            return copy;
        }
    }

    /**
     * Makes the offsets of sequences with these lengths.
     *
     * @throws IllegalArgumentException when a length is negative, or their sum no int
     */
    public static CuSeqlens ofLengths(Scope scope, int... lengths) {
        int[] offsets = new int[lengths.length + 1];
        for (int i = 0; i < lengths.length; i++) {
            if (lengths[i] < 0) {
                throw new IllegalArgumentException("lengths: expected none negative, got " + lengths[i] + " at " + i);
            }
            if (lengths[i] > Integer.MAX_VALUE - offsets[i]) {
                throw new IllegalArgumentException("lengths: expected at most " + Integer.MAX_VALUE
                        + " tokens in all, got more at " + i + "; make the batch smaller");
            }
            offsets[i + 1] = offsets[i] + lengths[i];
        }
        return of(scope, offsets);
    }

    /**
     * Enqueues a copy of {@code sequences + 1} offsets. The source must stay as it is until the stream has passed the copy.
     * Makes no garbage when a restarted scope repeats it.
     *
     * @param scope owns the device copy
     * @param source native memory with INT32 offsets
     * @param sequences number of sequences
     * @throws IllegalArgumentException when the source is too short, the first offset is not 0, or they decrease
     */
    public static CuSeqlens copyOf(Scope scope, MemorySegment source, int sequences) {
        int longest = check(source, sequences);
        Tensor offsets = scope.tensor(DType.INT32, sequences + 1L);
        CuSeqlens kept = scope.recall(CuSeqlens.class);
        if (kept == null || kept.offsets != offsets) {
            kept = new CuSeqlens(offsets);
        }
        scope.keep(kept);
        kept.sequences = sequences;
        kept.tokens = source.getAtIndex(ValueLayout.JAVA_INT, sequences);
        kept.longest = longest;
        Transfer.fromHost(offsets.cell(), scope.stream().handle(), source);
        offsets.cell().fix();
        kept.issue = offsets.cell().issue();
        return kept;
    }

    private static int check(MemorySegment source, int sequences) {
        if (sequences < 0) {
            throw new IllegalArgumentException("offsets: expected at least the offset 0, got none");
        }
        long bytes = 4 * (sequences + 1L);
        if (source.byteSize() < bytes) {
            throw new IllegalArgumentException(
                    "source: expected " + bytes + " bytes for " + sequences + " sequences, got " + source.byteSize());
        }
        int before = source.getAtIndex(ValueLayout.JAVA_INT, 0);
        if (before != 0) {
            throw new IllegalArgumentException("offsets: expected to start at 0, got " + before);
        }
        int longest = 0;
        for (int i = 1; i <= sequences; i++) {
            int here = source.getAtIndex(ValueLayout.JAVA_INT, i);
            if (here < before) {
                throw new IllegalArgumentException(
                        "offsets: expected not to decrease, got " + here + " after " + before + " at index " + i);
            }
            longest = Math.max(longest, here - before);
            before = here;
        }
        return longest;
    }

    /**
     * Returns the offsets for work in {@code scope}.
     *
     * @throws IllegalStateException when their scope is closed, or has handed their memory out for something else
     */
    TensorCell checked(Scope scope) {
        TensorCell cell = Checks.on(scope, "sequences", offsets);
        if (cell.issue() != issue) {
            throw new IllegalStateException(
                    "sequences: the CuSeqlens was made before the last restart of " + cell.scope()
                            + ", which has handed out its memory for something else; make it again after restart()");
        }
        return cell;
    }

    /** Returns the offsets on the device: INT32 [sequences + 1]. They are trusted, and cannot be written to. */
    public Tensor offsets() {
        return offsets;
    }

    /** Returns the number of sequences. */
    public int sequences() {
        return sequences;
    }

    /** Returns the last offset: the tokens of all sequences. */
    public int tokens() {
        return tokens;
    }

    /** Returns the length of the longest sequence. */
    public int longest() {
        return longest;
    }
}
