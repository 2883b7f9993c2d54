package dev.chagres.attention;

import dev.chagres.Scope;
import dev.chagres.internal.Checks;
import dev.chagres.te.QkvFormat;

/**
 * Some of the tokens of packed sequences as queries over the keys of all: those of one of several ranks that split tokens and gather
 * keys.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code get_batch_on_this_cp_rank}.
 */
public final class PackedChunk {
    private PackedChunk() {}

    /**
     * Returns the sequences of a stretch of tokens. Each query sequence is what the stretch has of it, often nothing; positions count
     * from the first token of the whole sequence.
     *
     * @param scope owns the numbers that the kernels read
     * @param begin first token of the stretch
     * @param end token behind it
     * @param lengths tokens of each whole sequence; 0 is an empty one
     * @throws IllegalArgumentException when a length is negative, an int cannot count the tokens, or the stretch has no token, or
     *     tokens that the sequences have not
     */
    public static Sequences of(Scope scope, long begin, long end, int... lengths) {
        Sequences whole = Sequences.packed(Checks.given("scope", scope), Checks.given("lengths", lengths));
        try (PackedChunks cut = new PackedChunks(scope.device())) {
            cut.set(whole, begin, end, scope);
            scope.stream().synchronize();
            return cut.part();
        }
    }

    /** Checks that ranks can split the tokens of these sequences; {@code where} says what the ranks do. */
    static void checkPacked(Sequences sequences, String where) {
        Checks.given("sequences", sequences).check();
        if (sequences.format() != QkvFormat.THD || sequences.cuSeqlensPadded() != null) {
            throw new IllegalArgumentException("sequences: expected packed ones without gaps where " + where + ", got "
                    + sequences + (sequences.cuSeqlensPadded() == null ? "" : " with gaps")
                    + "; ContextParallel.of, which exchanges heads, allows every layout");
        }
    }
}
