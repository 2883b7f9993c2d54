package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class EsmVocabularyTest {
    private static final String PUBLISHED =
            "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>";

    @Test
    void tokensLieInThePublishedOrder() {
        assertEquals(PUBLISHED, String.join(" ", EsmVocabulary.tokens()));
        assertEquals(EsmVocabulary.SIZE, EsmVocabulary.tokens().size());
        assertEquals("<cls>", EsmVocabulary.tokens().get(EsmVocabulary.CLS));
        assertEquals("<pad>", EsmVocabulary.tokens().get(EsmVocabulary.PAD));
        assertEquals("<eos>", EsmVocabulary.tokens().get(EsmVocabulary.EOS));
        assertEquals("<unk>", EsmVocabulary.tokens().get(EsmVocabulary.UNKNOWN));
        assertEquals("<mask>", EsmVocabulary.tokens().get(EsmVocabulary.MASK));
    }

    @Test
    void lettersMapToTheirTokensInEitherCase() {
        String residues = "LAGVSERTIDPKQNFYMHWCXBUZO.-";
        for (int i = 0; i < 256; i++) {
            char letter = Character.toUpperCase((char) i);
            int place = i < 128 ? residues.indexOf(letter) : -1;
            assertEquals(place < 0 ? -1 : 4 + place, EsmVocabulary.residueToken((byte) i), "byte " + i);
        }
    }
}
