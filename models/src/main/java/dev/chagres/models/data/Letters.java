package dev.chagres.models.data;

import java.util.Locale;

/**
 * What the letters of a FASTA file stand for. All of them are letters of {@link EsmVocabulary}, so a model of each has the same tokens.
 *
 * <p>Threading: immutable.
 */
public enum Letters {
    /** Amino acids, {@code X B U Z O} and the gaps {@code . -}; a file that begins with nucleotides alone is refused. */
    PROTEIN("LAGVSERTIDPKQNFYMHWCXBUZO.-", "LAGVSERTIDPKQNFYMHWC", "no residue in ESM-2's vocabulary"),
    /** The same letters, also where they look like nucleotides. */
    ANY(PROTEIN.taken, PROTEIN.standard, PROTEIN.problem),
    /** {@code A C G T}, the letters of IUPAC for several of them, and gaps. */
    DNA("ACGTRYSWKMBDHVN.-", "ACGT", "no nucleotide of DNA"),
    /** {@code A C G U}, the letters of IUPAC for several of them, and gaps. */
    RNA("ACGURYSWKMBDHVN.-", "ACGU", "no nucleotide of RNA");

    private final String taken;
    private final String standard;
    private final String problem;

    Letters(String taken, String standard, String problem) {
        this.taken = taken;
        this.standard = standard;
        this.problem = problem;
    }

    /** Returns by byte whether it is a letter, upper or lower case. */
    boolean[] table() {
        boolean[] table = new boolean[256];
        for (char letter : taken.toCharArray()) {
            table[letter] = true;
            table[Character.toLowerCase(letter)] = true;
        }
        return table;
    }

    /** Returns the tokens of the letters that each stand for one residue or nucleotide. */
    int[] standardTokens() {
        return standard.chars()
                .map(letter -> EsmVocabulary.residueToken((byte) letter))
                .toArray();
    }

    /** Returns why another letter is refused. */
    String problem() {
        return "it stands for " + problem;
    }

    /** Returns the word that chooses it, {@code protein}. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
