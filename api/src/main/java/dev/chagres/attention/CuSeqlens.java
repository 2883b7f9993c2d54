package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.HostMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Cumulative sequence lengths: sequence i has the tokens from {@code offsets[i]} up to {@code offsets[i + 1]}.
 *
 * <p>Kernels trust these numbers, so they are checked here: they start at 0 and never decrease. Users of the offsets check that they end at
 * the token count.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cu_seqlens} in TE's {@code fused_attn.h}.
 */
public final class CuSeqlens {
    /** Slices of a caller's memory may begin anywhere. */
    private static final ValueLayout.OfInt OFFSET = ValueLayout.JAVA_INT_UNALIGNED;

    private static final String WHAT = "the offsets of the CuSeqlens";

    private @Nullable Tensor offsets;
    /** The memory of offsets that were made by {@link #fixed}; null if each {@link #set(Scope, MemorySegment, int)} allocates memory. */
    private @Nullable Tensor target;

    /** Whether {@link #set(MemorySegment)} takes fewer tokens, as the kernels of padded sequences do. */
    private boolean mayBeShorter;

    private @Nullable Scope scope;
    private int sequences;
    private int tokens;
    private int longest;
    private int shortest;
    /** Whether a graph was captured that gives wrong results if a sequence has no tokens. */
    private boolean needsTokens;

    /** The issue number of the tensor that holds the offsets. */
    private int issue;
    /** How often {@link #set} was called. */
    private int version;
    /** The offsets, as they were set. */
    private int[] host = {};

    /** Makes an object without offsets, for {@link #set}, which may be called repeatedly without garbage. */
    public CuSeqlens() {}

    /**
     * Copies offsets to the device and waits.
     *
     * @param scope owns the device copy
     * @param offsets 0, then the end of each sequence
     * @throws IllegalArgumentException when there are none, the first is not 0, or they decrease
     */
    public static CuSeqlens of(Scope scope, int... offsets) {
        Checks.given("scope", scope, "offsets", offsets);
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
     * @throws IllegalArgumentException when a length is negative, or their sum does not fit into an int
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
     * Enqueues a copy of {@code count + 1} offsets, which replace the present ones. The source must stay unchanged until the stream has
     * done the copy.
     *
     * @param scope owns the device copy
     * @param source native memory with INT32 offsets
     * @param count number of sequences
     * @throws IllegalArgumentException when the source is too short, the first offset is not 0, or they decrease
     * @throws IllegalStateException when this was made by {@link #fixed}
     */
    public void set(Scope scope, MemorySegment source, int count) {
        Checks.given("scope", scope);
        if (target != null) {
            throw new IllegalStateException("the CuSeqlens has a fixed place, which graphs may read: call set(source)");
        }
        int longestOfAll = check(source, count);
        Tensor copy = scope.tensor(DType.INT32, count + 1L);
        copy.copyFrom(scope.stream(), source);
        Inside.fix(copy);
        offsets = copy;
        issue = Inside.issue(copy);
        sequences = count;
        tokens = source.getAtIndex(OFFSET, count);
        longest = longestOfAll;
        remember(source);
        version++;
    }

    private void remember(MemorySegment source) {
        if (host.length <= sequences) {
            host = new int[Math.max(sequences + 1, 2 * host.length)];
        }
        shortest = sequences == 0 ? 0 : Integer.MAX_VALUE;
        for (int i = 0; i <= sequences; i++) {
            host[i] = source.getAtIndex(OFFSET, i);
            shortest = i == 0 ? shortest : Math.min(shortest, host[i] - host[i - 1]);
        }
    }

    /**
     * Makes offsets at a fixed address, as graphs need them, for {@link #set(MemorySegment)}. The numbers of sequences and tokens and the
     * longest length are fixed, too, so no offset can point past the tensors of layers or of a captured graph.
     *
     * @param scope owns the device copy, and its stream copies
     * @param sequences how many there always are; some may be empty
     * @param longest tokens that no sequence exceeds
     * @param tokens of all sequences together
     * @throws IllegalArgumentException when a number is negative, or this many sequences cannot have this many tokens
     */
    public static CuSeqlens fixed(Scope scope, int sequences, int longest, int tokens) {
        return fixedPlace(scope, sequences, longest, tokens);
    }

    /**
     * Makes the lengths of padded sequences at a fixed address, like {@link #fixed(Scope, int, int, int)}; {@link #set(MemorySegment)} may
     * give them fewer tokens. The object cannot be used for packed sequences.
     *
     * @param scope owns the device copy, and its stream copies
     * @param sequences how many there always are; some may be empty
     * @param longest tokens that no sequence exceeds
     * @throws IllegalArgumentException when a number is negative, or the number of tokens does not fit into an int
     */
    public static CuSeqlens fixed(Scope scope, int sequences, int longest) {
        if (sequences > 0 && longest > Integer.MAX_VALUE / sequences) {
            throw new IllegalArgumentException("sequences, longest: expected at most " + Integer.MAX_VALUE
                    + " tokens in all, got " + sequences + " sequences of " + longest);
        }
        CuSeqlens made = fixedPlace(scope, sequences, longest, Math.max(0, sequences) * Math.max(0, longest));
        made.mayBeShorter = true;
        return made;
    }

    private static CuSeqlens fixedPlace(Scope scope, int sequences, int longest, int tokens) {
        Checks.given("scope", scope);
        if (sequences < 0 || longest < 0 || tokens < 0 || sequences == Integer.MAX_VALUE) {
            throw new IllegalArgumentException("sequences, longest, tokens: expected numbers from 0 to "
                    + (Integer.MAX_VALUE - 1) + ", got " + sequences + ", " + longest + " and " + tokens);
        }
        if ((long) sequences * longest < tokens) {
            throw new IllegalArgumentException("tokens: expected at most " + (long) sequences * longest + ", those of "
                    + sequences + " sequences of " + longest + ", got " + tokens);
        }
        CuSeqlens made = new CuSeqlens();
        Tensor all = scope.tensor(DType.INT32, sequences + 1L);
        Tensor readable = scope.view(all, 0, sequences + 1L);
        Inside.fix(readable);
        made.target = all;
        made.scope = scope;
        made.offsets = readable;
        made.issue = Inside.issue(readable);
        made.sequences = sequences;
        made.longest = longest;
        made.tokens = tokens;
        return made;
    }

    /**
     * Enqueues a copy of the offsets to their fixed place, on the stream of the scope that {@link #fixed} was given. The source must stay
     * unchanged until the stream has done the copy.
     *
     * @param source native memory with INT32 offsets, one more than there are sequences
     * @throws IllegalArgumentException when the source is too short, the first offset is not 0, or they decrease. Also when a sequence is
     *     longer than {@link #fixed} was told, or the tokens are fewer or more and not those of padded sequences. Also when a sequence has no
     *     keys for a captured graph in which cuDNN's kernels attend over them. The offsets then stay as they are
     * @throws IllegalStateException when this was not made by {@link #fixed}, or its scope was closed or restarted
     */
    public void set(MemorySegment source) {
        Tensor place = target;
        Scope owner = scope;
        if (place == null || owner == null) {
            throw new IllegalStateException("the CuSeqlens has no fixed place: make it with CuSeqlens.fixed, or call"
                    + " set(scope, source, count)");
        }
        ensureOwn();
        int actual = check(source, sequences);
        if (actual > longest) {
            throw new IllegalArgumentException("source: expected sequences of at most " + longest
                    + " tokens, as CuSeqlens.fixed was told, got one of " + actual);
        }
        int end = source.getAtIndex(OFFSET, sequences);
        if (!mayBeShorter && end != tokens) {
            throw new IllegalArgumentException("source: expected " + tokens
                    + " tokens in all, as CuSeqlens.fixed was told, got " + end
                    + "; fill up with sequences of padding");
        }
        if (needsTokens) {
            ensureTokens(source);
        }
        place.copyFrom(owner.stream(), source);
        remember(source);
        version++;
    }

    private void ensureTokens(MemorySegment source) {
        for (int i = 0; i < sequences; i++) {
            if (source.getAtIndex(OFFSET, i) == source.getAtIndex(OFFSET, i + 1L)) {
                throw new IllegalArgumentException("source: expected tokens in each sequence, for a graph was captured"
                        + " whose attention by cuDNN over these keys needs them, got none in sequence " + i
                        + "; capture it while a sequence has none");
            }
        }
    }

    private static int check(MemorySegment source, int sequences) {
        if (sequences < 0) {
            throw new IllegalArgumentException("offsets: expected at least the offset 0, got none");
        }
        HostMemory.ensureOpen("source", Checks.given("source", source));
        long bytes = 4 * (sequences + 1L);
        if (source.byteSize() < bytes) {
            throw new IllegalArgumentException(
                    "source: expected " + bytes + " bytes for " + sequences + " sequences, got " + source.byteSize());
        }
        int before = source.getAtIndex(OFFSET, 0);
        if (before != 0) {
            throw new IllegalArgumentException("offsets: expected to start at 0, got " + before);
        }
        int longest = 0;
        for (int i = 1; i <= sequences; i++) {
            int here = source.getAtIndex(OFFSET, i);
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
     * Returns the offsets on the device: INT32 [sequences + 1]. Kernels trust them, so they cannot be written to.
     *
     * @throws IllegalStateException when there are none yet, their scope is closed, or it was restarted since
     */
    public Tensor offsets() {
        if (offsets == null || version == 0) {
            throw new IllegalStateException("the CuSeqlens has no offsets yet: call "
                    + (target == null ? "set(scope, source, count)" : "set(source)"));
        }
        Tensor present = ensureOwn();
        Inside.trust(present, WHAT);
        return present;
    }

    private Tensor ensureOwn() {
        Tensor present = Checks.given("offsets", offsets);
        if (Inside.isTakenBack(present, issue)) {
            throw new IllegalStateException(
                    "sequences: the scope that holds the offsets of the CuSeqlens was restarted since they were set, and"
                            + " may have handed out their memory for something else; set them again");
        }
        present.address();
        return present;
    }

    /** Returns whether offsets were set and their memory is still valid. */
    boolean isLive() {
        Tensor present = offsets;
        return present != null && present.isLive() && Inside.issue(present) == issue;
    }

    /** Returns the number of sequences. */
    public int sequences() {
        return sequences;
    }

    /** Returns whether these may not be used as offsets of packed tokens. */
    boolean isOfPaddedAlone() {
        return mayBeShorter;
    }

    /** Returns the last offset: the tokens of all sequences; for {@link #fixed} padded ones the largest possible number. */
    public int tokens() {
        return tokens;
    }

    /** Returns the length of the longest sequence. */
    public int longest() {
        return longest;
    }

    /**
     * For layers: makes {@link #set(MemorySegment)} refuse sequences without tokens, for which a graph that is captured now would give
     * wrong results.
     */
    public void needTokens() {
        needsTokens = true;
    }

    /** Returns the length of the shortest sequence, as the host has set it last; 0 without sequences. */
    public int shortest() {
        return shortest;
    }

    /**
     * Returns the length of every sequence, where all are equally long and stay so for as long as a kernel or a graph can read these offsets;
     * else 0. No sequence exceeds the longest length, also of {@link #fixed} offsets, so those of this many tokens leave nothing open.
     */
    long equalLength() {
        return sequences > 0 && !mayBeShorter && (long) sequences * longest == tokens ? longest : 0;
    }

    /** Returns the offset of a sequence, as last set by the host; for the index after the last sequence, the number of tokens. */
    int offset(int sequence) {
        return host[sequence];
    }

    /** Returns how often the offsets were set. */
    int version() {
        return version;
    }
}
