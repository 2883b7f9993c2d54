package dev.chagres.models.data;

import java.util.Arrays;
import java.util.List;

/**
 * ESM-2's vocabulary: 33 tokens in the order of the published models, 27 of them residue letters.
 *
 * <p>A model's tables have {@link #PADDED_SIZE} rows, the next multiple of 64, because matrix products are fastest on such
 * sizes; the rows from {@link #SIZE} on belong to no token.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a language model",
 * Science 2023; the token order is that of the released ESM-2 checkpoints.
 */
public final class EsmVocabulary {
    /** Begins every sequence. */
    public static final int CLS = 0;
    /** Fills a batch where there is no sequence. */
    public static final int PAD = 1;
    /** Ends every sequence. */
    public static final int EOS = 2;
    /** A letter without a token, where {@link UnknownLetters#UNK} takes it. */
    public static final int UNKNOWN = 3;
    /** First token of a residue letter. */
    public static final int FIRST_RESIDUE = 4;
    /** Tokens of the 20 standard amino acids: from {@link #FIRST_RESIDUE}, this many. */
    public static final int STANDARD_RESIDUES = 20;
    /** Stands for a residue that the model is to predict. */
    public static final int MASK = 32;
    /** Number of tokens. */
    public static final int SIZE = 33;
    /** Rows of a model's embedding and decoder. */
    public static final int PADDED_SIZE = 64;

    private static final List<String> TOKENS = List.of(
            "<cls>",
            "<pad>",
            "<eos>",
            "<unk>",
            "L",
            "A",
            "G",
            "V",
            "S",
            "E",
            "R",
            "T",
            "I",
            "D",
            "P",
            "K",
            "Q",
            "N",
            "F",
            "Y",
            "M",
            "H",
            "W",
            "C",
            "X",
            "B",
            "U",
            "Z",
            "O",
            ".",
            "-",
            "<null_1>",
            "<mask>");
    private static final byte[] TOKEN_OF_BYTE = tokenOfByte();

    private EsmVocabulary() {}

    /** Returns the text of every token, in token order. */
    public static List<String> tokens() {
        return TOKENS;
    }

    /**
     * Returns the token of a residue letter, upper or lower case.
     *
     * @param letter one byte of a sequence
     * @return the token, or -1 when the byte is no residue letter of the vocabulary
     */
    public static int residueToken(byte letter) {
        return TOKEN_OF_BYTE[letter & 0xff];
    }

    /** Returns the token of a residue letter, upper or lower case, or {@link #UNKNOWN} where it has none. */
    public static int token(byte letter) {
        return Math.max(UNKNOWN, residueToken(letter));
    }

    private static byte[] tokenOfByte() {
        byte[] table = new byte[256];
        Arrays.fill(table, (byte) -1);
        for (int token = FIRST_RESIDUE; token < TOKENS.size(); token++) {
            String text = TOKENS.get(token);
            if (text.length() == 1) {
                char letter = text.charAt(0);
                table[letter] = (byte) token;
                table[Character.toLowerCase(letter)] = (byte) token;
            }
        }
        return table;
    }
}
