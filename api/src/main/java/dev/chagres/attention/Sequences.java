package dev.chagres.attention;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.TensorCell;
import org.jspecify.annotations.Nullable;

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
    /** Order of the token dimensions. */
    public enum Format {
        /** [S, B, h, d]. */
        SBHD(0),
        /** [B, S, h, d]. */
        BSHD(1),
        /** [T, h, d]. */
        THD(2);

        private final int code;

        Format(int code) {
            this.code = code;
        }

        /** Returns TE's number of this format. */
        public int code() {
            return code;
        }
    }

    /** Whether some tokens belong to no sequence, or sequences differ in length. */
    public enum Padding {
        /** All sequences have the full length. */
        NONE,
        /** Lengths come from the cumulative lengths. */
        BY_LENGTHS
    }

    private final Format format;
    private final Padding padding;
    private final CuSeqlens cuSeqlens;
    private final long batch;
    private final long length;

    private Sequences(Format format, Padding padding, CuSeqlens cuSeqlens, long batch, long length) {
        this.format = format;
        this.padding = padding;
        this.cuSeqlens = cuSeqlens;
        this.batch = batch;
        this.length = length;
    }

    /** Packed sequences: the tokens of one follow those of the one before. */
    public static Sequences packed(CuSeqlens cuSeqlens) {
        return new Sequences(Format.THD, Padding.BY_LENGTHS, cuSeqlens, cuSeqlens.sequences(), cuSeqlens.longest());
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
     * {@code batch} sequences of exactly {@code length} tokens.
     *
     * @param scope owns the lengths that the kernels read
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when the format is THD, or a size is not positive
     */
    public static Sequences dense(Scope scope, Format format, int batch, int length) {
        checkDense(format, batch, length);
        if ((long) batch * length > Integer.MAX_VALUE || batch == Integer.MAX_VALUE) {
            throw new IllegalArgumentException("batch, length: expected at most " + Integer.MAX_VALUE
                    + " tokens in all, got " + batch + " sequences of " + length);
        }
        int[] offsets = new int[batch + 1];
        for (int i = 0; i < batch; i++) {
            offsets[i + 1] = offsets[i] + length;
        }
        return new Sequences(format, Padding.NONE, CuSeqlens.of(scope, offsets), batch, length);
    }

    /**
     * Sequences padded to {@code length} tokens each; {@code valid} has their true lengths.
     *
     * @param format BSHD or SBHD
     * @throws IllegalArgumentException when the format is THD, a size is not positive, or a sequence is longer
     */
    public static Sequences padded(Format format, CuSeqlens valid, int length) {
        checkDense(format, valid.sequences(), length);
        if (valid.longest() > length) {
            throw new IllegalArgumentException(
                    "length: expected at least the longest sequence, " + valid.longest() + ", got " + length);
        }
        return new Sequences(format, Padding.BY_LENGTHS, valid, valid.sequences(), length);
    }

    /**
     * Returns {@code before} when it already says {@link #packed} of these lengths, else a new object: for loops that make
     * no garbage.
     */
    public static Sequences packedAgain(@Nullable Sequences before, CuSeqlens cuSeqlens) {
        return before != null && before.format == Format.THD && before.cuSeqlens == cuSeqlens
                ? before
                : packed(cuSeqlens);
    }

    private static void checkDense(Format format, long batch, long length) {
        if (format == Format.THD) {
            throw new IllegalArgumentException("format: expected BSHD or SBHD, got THD; use Sequences.packed");
        }
        if (batch < 1 || length < 1) {
            throw new IllegalArgumentException(
                    "batch, length: expected at least 1 each, got " + batch + " and " + length);
        }
    }

    /** Returns the order of the token dimensions. */
    public Format format() {
        return format;
    }

    /** Returns whether lengths differ. */
    public Padding padding() {
        return padding;
    }

    /** Returns the cumulative valid lengths. */
    public CuSeqlens cuSeqlens() {
        return cuSeqlens;
    }

    /** Returns the number of sequences. */
    public long batch() {
        return format == Format.THD ? cuSeqlens.sequences() : batch;
    }

    /** Returns the padded length, or the longest length when packed. */
    public long length() {
        return format == Format.THD ? cuSeqlens.longest() : length;
    }

    /** Returns the tokens that an input has, padding included. */
    public long tokens() {
        return format == Format.THD ? cuSeqlens.tokens() : batch * length;
    }

    /** Returns the tokens in memory from one token of a sequence to its next. */
    long tokenStride() {
        return format == Format.SBHD ? batch : 1;
    }

    /** Returns the tokens in memory from one sequence to the next; packed, the offsets say it, and this is 0. */
    long sequenceStride() {
        return switch (format) {
            case THD -> 0;
            case BSHD -> length;
            case SBHD -> 1;
        };
    }

    /** Returns whether the dimensions before heads and head dimension are those of these sequences. */
    boolean fits(TensorCell cell) {
        return switch (format) {
            case THD -> cell.rank() == 3 && cell.size(0) == tokens();
            case BSHD -> cell.rank() == 4 && cell.size(0) == batch && cell.size(1) == length;
            case SBHD -> cell.rank() == 4 && cell.size(0) == length && cell.size(1) == batch;
        };
    }

    /** Returns the shape of query, key and value for a message. */
    String shape() {
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
