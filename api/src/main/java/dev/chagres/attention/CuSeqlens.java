package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

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
    private @Nullable Tensor offsets;
    private int sequences;
    private int tokens;
    private int longest;
    /** The issue number of the tensor that holds the offsets. */
    private int issue;
    /** How often {@link #set} was called. */
    private int version;

    /** Makes one without offsets: {@link #set} gives it some, again and again without garbage. */
    public CuSeqlens() {}

    /**
     * Copies offsets to the device and waits.
     *
     * @param scope owns the device copy
     * @param offsets 0, then the end of each sequence
     * @throws IllegalArgumentException when there are none, the first is not 0, or they decrease
     */
    public static CuSeqlens of(Scope scope, int... offsets) {
        Checks.given("scope", scope);
        Checks.given("offsets", offsets);
        try (HostBuffer host = HostBuffer.pageable(scope.device(), 4L * offsets.length)) {
            MemorySegment.copy(offsets, 0, host.segment(), ValueLayout.JAVA_INT, 0, offsets.length);
            CuSeqlens copy = new CuSeqlens();
            copy.set(scope, host.segment(), offsets.length - 1);
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
        Checks.given("scope", scope);
        int[] offsets = new int[Checks.given("lengths", lengths).length + 1];
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
     * Enqueues a copy of {@code count + 1} offsets, which replace those that this object had. The source must stay as it is
     * until the stream has passed the copy.
     *
     * @param scope owns the device copy
     * @param source native memory with INT32 offsets
     * @param count number of sequences
     * @throws IllegalArgumentException when the source is too short, the first offset is not 0, or they decrease
     */
    public void set(Scope scope, MemorySegment source, int count) {
        Checks.given("scope", scope);
        int longestOfAll = check(Checks.given("source", source), count);
        Tensor copy = scope.tensor(DType.INT32, count + 1L);
        copy.copyFrom(scope.stream(), source);
        Inside.fix(copy);
        offsets = copy;
        issue = Inside.issue(copy);
        sequences = count;
        tokens = source.getAtIndex(ValueLayout.JAVA_INT, count);
        longest = longestOfAll;
        version++;
    }

    /**
     * Names the memory in which the offsets lie from now on, for {@link #set(Stream, Tensor, MemorySegment, int, int)}: the same
     * at each step, as graphs want it.
     *
     * @param target INT32 [sequences + 1]; it cannot be written to through this tensor any more
     * @throws IllegalArgumentException when type or shape do not fit
     */
    public void fixed(Tensor target) {
        if (Checks.given("target", target).dtype() != DType.INT32 || target.rank() != 1 || target.size(0) < 1) {
            throw new IllegalArgumentException(
                    "target: expected INT32 [sequences + 1], got " + Checks.describe(target));
        }
        Inside.fix(target);
        offsets = target;
        issue = Inside.issue(target);
        sequences = Math.toIntExact(target.size(0)) - 1;
        tokens = 0;
        longest = 0;
        version++;
    }

    /**
     * Enqueues a copy of {@code count + 1} offsets to where {@link #fixed} has said. The source must stay as it is until the
     * stream has passed the copy.
     *
     * @param target another tensor over the memory that was given to {@link #fixed}
     * @param source native memory with INT32 offsets
     * @param count number of sequences, as the memory has room for
     * @param longestOfAll what {@link #longest()} says from now on
     * @throws IllegalArgumentException when the target lies elsewhere, the source is too short, the first offset is not 0, they
     *     decrease, or a sequence is longer than {@code longestOfAll}
     */
    public void set(Stream stream, Tensor target, MemorySegment source, int count, int longestOfAll) {
        if (Checks.given("target", target).address() != offsets().address()
                || target.dtype() != DType.INT32
                || target.count() != sequences + 1L
                || count != sequences) {
            throw new IllegalArgumentException("target: expected the memory of " + sequences
                    + " sequences that was given to fixed, got " + count + " sequences in " + Checks.describe(target));
        }
        int actual = check(Checks.given("source", source), count);
        if (actual > longestOfAll) {
            throw new IllegalArgumentException(
                    "longestOfAll: expected at least the longest sequence, " + actual + ", got " + longestOfAll);
        }
        target.copyFrom(stream, source);
        tokens = source.getAtIndex(ValueLayout.JAVA_INT, count);
        longest = longestOfAll;
        version++;
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
     * Returns the offsets on the device: INT32 [sequences + 1]. They are trusted, and cannot be written to.
     *
     * @throws IllegalStateException when there are none yet, their scope is closed, or it was restarted since
     */
    public Tensor offsets() {
        Tensor present = offsets;
        if (present == null) {
            throw new IllegalStateException("the CuSeqlens has no offsets yet: call set(scope, source, count)");
        }
        if (Inside.issue(present) != issue) {
            throw new IllegalStateException(
                    "sequences: the scope that holds the offsets of the CuSeqlens was restarted since they were set, and"
                            + " has handed out their memory for something else; set them again");
        }
        present.address();
        return present;
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

    /** Returns how often the offsets were set. */
    int version() {
        return version;
    }
}
