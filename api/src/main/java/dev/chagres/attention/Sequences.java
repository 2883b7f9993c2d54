package dev.chagres.attention;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.TokenPositions;
import dev.chagres.te.QkvFormat;
import org.jspecify.annotations.Nullable;

// Over 400 lines: 170 are Javadoc and imports. CuSeqlens, StartPositions and PackedPrefix keep the numbers.

/**
 * How the tokens of a batch are arranged: packed one sequence after another (THD), or padded to one length (BSHD, SBHD).
 *
 * <p>Layers take their input as [T, H] whatever the arrangement; T counts padding too.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code NVTE_QKV_Format} in TE's {@code fused_attn.h}.
 */
public final class Sequences {
    /** Whether some tokens belong to no sequence, or sequences differ in length. */
    public enum Padding {
        /** All sequences have the full length. */
        NONE,
        /** Lengths come from the cumulative lengths. */
        BY_LENGTHS
    }

    /** cuDNN makes a plan for each length of dense sequences, so few lengths are taken: those to which it rounds those of packed ones. */
    private static final long DENSE_STEP = 128;

    private final QkvFormat format;
    private final Padding padding;
    private final CuSeqlens cuSeqlens;
    private long batch;
    private final long length;
    /** The sequences of the keys; null where queries and keys are the same tokens. */
    private final @Nullable Sequences keys;
    /** The sequences on which {@link #withKeys} was called. */
    private final @Nullable Sequences queries;
    /** The version of the lengths that batch and length were read from. */
    private int version;
    /** The versions of lengths and places that fit together, as {@link #check} has found; -1 before. */
    private int checkedLengths = -1;

    private int checkedPlaces = -1;
    /** INT32 [B], the position of each sequence's first token; null: 0. */
    private @Nullable StartPositions starts;
    /** Where packed sequences with gaps start; null if there are no gaps. */
    private @Nullable CuSeqlens cuSeqlensPadded;
    /** The first token of {@link PackedChunk} among those of the keys; -1 of other sequences. */
    private long part = -1;
    /** The keys up to the last query of {@link PackedChunk}; null for other sequences. */
    private @Nullable PackedPrefix prefix;
    /** INT32 [B], the number of each sequence among those of all ranks; null: 0, 1 and so on. */
    private @Nullable StartPositions numbers;
    /** BYTE, by score; null: none. */
    private @Nullable Tensor scoreMask;
    /** The latest answer of {@link #asDense} that is not null. */
    private @Nullable Sequences dense;

    private Sequences(
            QkvFormat format,
            Padding padding,
            CuSeqlens cuSeqlens,
            long batch,
            long length,
            @Nullable Sequences queries,
            @Nullable Sequences keys) {
        this.format = format;
        this.padding = padding;
        this.cuSeqlens = cuSeqlens;
        this.batch = batch;
        this.length = length;
        this.queries = queries;
        this.keys = keys;
        version = cuSeqlens.version();
    }

    /**
     * Packed sequences: the tokens of each sequence follow those of the one before. After {@link CuSeqlens#set} on {@code cuSeqlens} this
     * object has the new lengths.
     *
     * @throws IllegalArgumentException when they were made by {@link CuSeqlens#fixed(Scope, int, int)}, for padded sequences
     */
    public static Sequences packed(CuSeqlens cuSeqlens) {
        if (Checks.given("cuSeqlens", cuSeqlens).isOfPaddedAlone()) {
            throw new IllegalArgumentException("cuSeqlens: expected offsets of packed tokens, got lengths of padded"
                    + " sequences; use Sequences.padded, or CuSeqlens.fixed with the number of tokens");
        }
        return new Sequences(QkvFormat.THD, Padding.BY_LENGTHS, cuSeqlens, 0, 0, null, null);
    }

    /**
     * Packed sequences of these lengths.
     *
     * @param scope owns the offsets that the kernels read
     * @param lengths tokens of each sequence; 0 is an empty one
     * @throws IllegalArgumentException when a length is negative, or an int cannot count the tokens
     */
    public static Sequences packed(Scope scope, int... lengths) {
        return packed(CuSeqlens.ofLengths(scope, lengths));
    }

    /**
     * Packed sequences with gaps between them: each has {@code padded} tokens, of which the first {@code lengths} count. Attention does not
     * read the rest, and writes zeros there, also in gradients.
     *
     * @param scope owns the offsets that the kernels read
     * @param lengths tokens of each sequence that count; 0 is an empty one
     * @param padded tokens of each sequence, including the gap after it
     * @throws IllegalArgumentException when the numbers of lengths differ, a length is negative or longer than its sequence with the gap,
     *     or an int cannot count the tokens
     */
    public static Sequences packed(Scope scope, int[] lengths, int[] padded) {
        if (Checks.given("lengths", lengths).length != Checks.given("padded", padded).length) {
            throw new IllegalArgumentException(
                    "padded: expected " + lengths.length + ", one of each sequence, got " + padded.length);
        }
        for (int i = 0; i < lengths.length; i++) {
            if (lengths[i] > padded[i]) {
                throw new IllegalArgumentException("padded: expected at least the length of each sequence, got "
                        + padded[i] + " at " + i + " for a length of " + lengths[i]);
            }
        }
        Sequences sequences = packed(scope, lengths);
        sequences.cuSeqlensPadded = CuSeqlens.ofLengths(scope, padded);
        return sequences;
    }

    /** Sets the token of the keys at which the queries begin, and returns this. */
    Sequences from(long first, PackedPrefix newPrefix) {
        part = first;
        prefix = newPrefix;
        return this;
    }

    /** Sets the indices of the sequences among those of all ranks, which are 0, 1 and so on by default, and returns this. */
    Sequences numbered(StartPositions newNumbers) {
        numbers = newNumbers;
        return this;
    }

    /** Returns the first token of {@link PackedChunk} among those of the keys; -1 of other sequences. */
    public long part() {
        return part;
    }

    /**
     * {@code batch} sequences of exactly {@code length} tokens.
     *
     * @param scope owns the lengths that the kernels read
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when the format is THD, or a size is not positive
     */
    public static Sequences dense(Scope scope, QkvFormat format, int batch, int length) {
        Checks.given("scope", scope);
        checkDense(format, batch, length);
        if ((long) batch * length > Integer.MAX_VALUE || batch == Integer.MAX_VALUE) {
            throw new IllegalArgumentException("batch, length: expected at most " + Integer.MAX_VALUE
                    + " tokens in all, got " + batch + " sequences of " + length);
        }
        int[] offsets = new int[batch + 1];
        for (int i = 0; i < batch; i++) {
            offsets[i + 1] = offsets[i] + length;
        }
        return new Sequences(format, Padding.NONE, CuSeqlens.of(scope, offsets), batch, length, null, null);
    }

    /**
     * Sequences padded to {@code length} tokens each; {@code valid} has their true lengths.
     *
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when the format is THD, a size is not positive, or a sequence is longer
     */
    public static Sequences padded(QkvFormat format, CuSeqlens valid, int length) {
        checkDense(format, Checks.given("valid", valid).sequences(), length);
        if (valid.longest() > length) {
            throw new IllegalArgumentException(
                    "length: expected at least the longest sequence, " + valid.longest() + ", got " + length);
        }
        return new Sequences(format, Padding.BY_LENGTHS, valid, valid.sequences(), length, null, null);
    }

    /**
     * Updates this object to new lengths after {@link CuSeqlens#set}, for loops that make no garbage.
     *
     * @return this
     * @throws IllegalArgumentException when a sequence is longer than the padded length, or a dense batch has other lengths
     */
    public Sequences follow() {
        if (padding == Padding.NONE && cuSeqlens.version() != version) {
            throw new IllegalArgumentException("lengths: expected those of a dense batch not to change; make another");
        }
        if (format != QkvFormat.THD) {
            if (cuSeqlens.longest() > length) {
                throw new IllegalArgumentException(
                        "length: expected at least the longest sequence, " + cuSeqlens.longest() + ", got " + length);
            }
            batch = cuSeqlens.sequences();
        }
        version = cuSeqlens.version();
        return this;
    }

    /**
     * Returns the same queries over the keys of other sequences, for cross-attention: query sequence i sees key sequence i. Self-attention in
     * the same pass reads the queries' tokens, without these keys.
     *
     * @param keySequences as many sequences, in the same format
     * @throws IllegalArgumentException when format or number differ
     */
    public Sequences withKeys(Sequences keySequences) {
        Checks.given("keySequences", keySequences);
        if (keySequences.format != format || keySequences.batch() != batch()) {
            throw new IllegalArgumentException("keySequences: expected " + batch() + " sequences in " + format
                    + ", got " + keySequences.batch() + " in " + keySequences.format);
        }
        Sequences both = new Sequences(format, padding, cuSeqlens, batch, length, queries(), keySequences);
        both.cuSeqlensPadded = cuSeqlensPadded;
        both.starts = starts;
        return both;
    }

    /**
     * Returns the same sequences with positions that count from {@code newStarts}, for a rotation of later parts of sequences.
     *
     * @param scope owns the numbers that the kernels read
     * @param newStarts the position of each sequence's first token
     * @throws IllegalArgumentException when their number is not that of the sequences, or one is negative
     */
    public Sequences startingAt(Scope scope, int... newStarts) {
        if (Checks.given("newStarts", newStarts).length != batch()) {
            throw new IllegalArgumentException(
                    "newStarts: expected " + batch() + ", one of each sequence, got " + newStarts.length);
        }
        return startingAt(StartPositions.of(scope, newStarts));
    }

    /** Returns the same with positions that may change with the lengths. */
    Sequences startingAt(StartPositions newStarts) {
        Sequences startedQueries = queries == null ? null : queries.startingAt(newStarts);
        Sequences started = new Sequences(format, padding, cuSeqlens, batch, length, startedQueries, keys);
        started.cuSeqlensPadded = cuSeqlensPadded;
        started.starts = newStarts;
        started.scoreMask = scoreMask;
        return started;
    }

    /**
     * Returns the same sequences with a mask by score: queries do not see keys where it is not 0. It is applied in addition to the
     * attention's own mask. It belongs to these queries and keys: self-attention of a decoder with cross-attention uses the mask of {@link
     * #queries}.
     *
     * @param mask BYTE {@code [1 or B, 1 or h, S, S']}, S at least the longest query sequence, S' at least the longest key sequence; the
     *     sizes are checked by attention
     * @throws IllegalArgumentException when type or rank do not fit
     */
    public Sequences withScoreMask(Tensor mask) {
        if (Checks.given("mask", mask).dtype() != DType.BYTE || mask.rank() != 4) {
            throw new IllegalArgumentException(
                    "mask: expected BYTE[1 or B, 1 or h, S, S'], got " + Checks.describe(mask));
        }
        Sequences masked = new Sequences(format, padding, cuSeqlens, batch, length, queries, keys);
        masked.cuSeqlensPadded = cuSeqlensPadded;
        masked.starts = starts;
        masked.scoreMask = mask;
        masked.part = part;
        masked.prefix = prefix;
        return masked;
    }

    /**
     * For layers: returns the queries of {@link PackedChunk} over the keys up to the last of them.
     *
     * @throws IllegalStateException when these are other sequences
     */
    public PackedPrefix prefix() {
        PackedPrefix present = prefix;
        if (present == null) {
            throw new IllegalStateException("prefix: expected sequences of PackedChunk.of, got " + this);
        }
        return present;
    }

    /** For layers: returns the number of each sequence among those of all ranks, INT32 [B]; null: 0, 1 and so on. */
    public @Nullable Tensor sequenceNumbers() {
        return numbers == null ? null : numbers.tensor();
    }

    /** Returns the mask by score, BYTE; null: none. */
    public @Nullable Tensor scoreMask() {
        return scoreMask;
    }

    /** Returns the position of each sequence's first token, INT32 [B]; null: all 0. */
    public @Nullable Tensor startPositions() {
        return starts == null ? null : starts.tensor();
    }

    /** Returns the latest of the start positions. */
    public int latestStart() {
        return starts == null ? 0 : starts.latest();
    }

    /** Returns a bound of the positions of all sequences. */
    long positions() {
        if (part >= 0) {
            return keys().length();
        }
        return starts == null ? length() : starts.positions(length());
    }

    /** Describes the layout of the tokens to {@code positions}, and returns it. */
    TokenPositions positions(TokenPositions positions) {
        return switch (format) {
            case THD -> positions.packed(placement().offsets()).startingAt(startPositions());
            case BSHD -> positions.padded(format, length).startingAt(startPositions());
            case SBHD -> positions.padded(format, batch).startingAt(startPositions());
        };
    }

    /**
     * For layers: returns packed sequences as dense ones, BSHD of the same tokens in the same memory, where attention's kernels may be told
     * so: all have one length, a multiple of 128, and their offsets can be set to no others, be it while a graph reads them. Sequences with
     * keys or gaps of their own, and parts of sequences, are not dense; null then.
     */
    public @Nullable Sequences asDense() {
        long each = format == QkvFormat.THD ? cuSeqlens.equalLength() : 0;
        if (each == 0
                || each % DENSE_STEP != 0
                || keys != null
                || cuSeqlensPadded != null
                || part >= 0
                || numbers != null) {
            return null;
        }
        Sequences present = dense;
        if (present == null || present.batch != cuSeqlens.sequences() || present.length != each) {
            present = new Sequences(QkvFormat.BSHD, Padding.NONE, cuSeqlens, cuSeqlens.sequences(), each, null, null);
            present.starts = starts;
            present.scoreMask = scoreMask;
            dense = present;
        }
        present.version = cuSeqlens.version();
        return present;
    }

    /** Returns the sequences of the keys: this object unless {@link #withKeys} set others. */
    public Sequences keys() {
        return keys == null ? this : keys;
    }

    /** Returns the sequences of the queries alone, for self-attention of a decoder whose sequences were made by {@link #withKeys}. */
    public Sequences queries() {
        return queries == null ? this : queries;
    }

    /** Returns whether queries and keys are the same tokens. */
    public boolean isSelf() {
        return keys == null;
    }

    /**
     * Checks that the lengths are valid and, for padded sequences, have not changed since this object was made.
     *
     * @throws IllegalStateException when the memory of lengths or start positions is gone, or the lengths were set again
     */
    public void check() {
        cuSeqlens.offsets();
        placement().offsets();
        if (format != QkvFormat.THD && cuSeqlens.version() != version) {
            throw new IllegalStateException("sequences: the lengths were set again since this " + format
                    + " object was made from them; make it again");
        }
        if (cuSeqlensPadded != null) {
            checkPlaces(cuSeqlensPadded);
        }
        StartPositions present = starts;
        if (present != null) {
            present.check(batch());
        }
        if (numbers != null) {
            numbers.check(batch());
        }
        if (keys != null) {
            keys.check();
        }
    }

    /** Checks, once for each change, that no sequence is longer than its place. */
    private void checkPlaces(CuSeqlens places) {
        if (cuSeqlens.version() == checkedLengths && places.version() == checkedPlaces) {
            return;
        }
        if (cuSeqlens.sequences() != places.sequences()) {
            throw new IllegalStateException("sequences: the lengths were set again, of " + cuSeqlens.sequences()
                    + " sequences, but there are places for " + places.sequences() + "; make this object again");
        }
        for (int i = 0; i < cuSeqlens.sequences(); i++) {
            int length = cuSeqlens.offset(i + 1) - cuSeqlens.offset(i);
            int place = places.offset(i + 1) - places.offset(i);
            if (length > place) {
                throw new IllegalStateException("sequences: the lengths were set again, and that of sequence " + i
                        + " is " + length + " tokens, more than its place of " + place + "; make this object again");
            }
        }
        checkedLengths = cuSeqlens.version();
        checkedPlaces = places.version();
    }

    private static void checkDense(QkvFormat format, long batch, long length) {
        Checks.given("format", format);
        if (format == QkvFormat.THD) {
            throw new IllegalArgumentException("format: expected BSHD or SBHD, got THD; use Sequences.packed");
        }
        if (batch < 1 || length < 1) {
            throw new IllegalArgumentException(
                    "batch, length: expected at least 1 each, got " + batch + " and " + length);
        }
    }

    /** Returns the order of the token dimensions. */
    public QkvFormat format() {
        return format;
    }

    /** Returns whether lengths of the queries, or of the keys that {@link #withKeys} set, differ. */
    public Padding padding() {
        return keys == null || padding == Padding.BY_LENGTHS ? padding : keys.padding();
    }

    /** Returns the cumulative valid lengths. */
    public CuSeqlens cuSeqlens() {
        return cuSeqlens;
    }

    /** Returns where packed sequences start when there are gaps between them; null without gaps. */
    public @Nullable CuSeqlens cuSeqlensPadded() {
        return cuSeqlensPadded;
    }

    /** Returns the cumulative lengths with padding: for packed sequences, where each starts; a gap belongs to the sequence before it. */
    public CuSeqlens placement() {
        return cuSeqlensPadded == null ? cuSeqlens : cuSeqlensPadded;
    }

    /** Returns the number of sequences. */
    public long batch() {
        return format == QkvFormat.THD ? cuSeqlens.sequences() : batch;
    }

    /** Returns the padded length, or the longest length when packed, gaps included. */
    public long length() {
        return format == QkvFormat.THD ? placement().longest() : length;
    }

    /** Returns the tokens that an input has, padding included. */
    public long tokens() {
        return format == QkvFormat.THD ? placement().tokens() : batch * length;
    }

    /** Returns whether the dimensions before heads and head dimension are those of these sequences. */
    public boolean fits(Tensor tensor) {
        Checks.given("tensor", tensor);
        return switch (format) {
            case THD -> tensor.rank() == 3 && tensor.size(0) == tokens();
            case BSHD -> tensor.rank() == 4 && tensor.size(0) == batch && tensor.size(1) == length;
            case SBHD -> tensor.rank() == 4 && tensor.size(0) == length && tensor.size(1) == batch;
        };
    }

    /** Returns the shape of query, key and value for a message, such as {@code [70, h, d]}. */
    public String shapeText() {
        return switch (format) {
            case THD -> "[" + tokens() + ", h, d]";
            case BSHD -> "[" + batch + ", " + length + ", h, d]";
            case SBHD -> "[" + length + ", " + batch + ", h, d]";
        };
    }

    /**
     * Checks that {@code rows} tokens were given.
     *
     * @throws IllegalArgumentException when the number differs
     */
    public void checkTokens(String argument, Tensor tensor, long rows) {
        if (rows != tokens()) {
            throw new IllegalArgumentException(argument + ": expected " + tokens() + " tokens as the sequences say ("
                    + format + ", " + batch() + " sequences), got " + rows + " in " + tensor);
        }
    }

    @Override
    public String toString() {
        return format + " of " + batch() + " sequences, " + tokens() + " tokens";
    }
}
