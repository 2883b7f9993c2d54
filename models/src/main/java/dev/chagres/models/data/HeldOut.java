package dev.chagres.models.data;

/**
 * Which sequences of a source are left out of training, so that they can be evaluated. A sequence's residues alone decide: it is held out, or
 * not, in every run, on every rank and in every file, and so are its copies.
 *
 * <p>A sequence that a fraction holds out, each larger fraction holds out, too.
 *
 * <p>Threading: immutable.
 *
 * @param fraction of the sequences, about
 */
public record HeldOut(double fraction) {
    private static final int DRAW = 1;
    private static final int DOUBLE_BITS = 53;

    /**
     * Checks the fraction.
     *
     * @throws IllegalArgumentException when it is not between 0 and 1
     */
    public HeldOut {
        if (!(fraction > 0 && fraction < 1)) {
            throw new IllegalArgumentException("fraction: expected a number between 0 and 1, got " + fraction);
        }
    }

    /**
     * Returns whether a sequence, or a text, is held out.
     *
     * @param residues upper-case letters, or the bytes of a text
     * @param length how many of them are the sequence
     */
    public boolean holds(byte[] residues, int length) {
        long drawn = SplitMix.key(key(residues, length), DRAW);
        return (drawn >>> (Long.SIZE - DOUBLE_BITS)) * 0x1p-53 < fraction;
    }

    /**
     * Returns a number that follows from a sequence's residues alone.
     *
     * <p>Source: Fowler, Noll and Vo, FNV-1a of 64 bits.
     */
    static long key(byte[] residues, int length) {
        long hash = 0xcbf29ce484222325L;
        for (int i = 0; i < length; i++) {
            hash = (hash ^ (residues[i] & 0xff)) * 0x100000001b3L;
        }
        return hash;
    }
}
