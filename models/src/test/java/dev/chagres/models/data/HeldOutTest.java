package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class HeldOutTest {
    private static List<String> headers(FastaSource source) {
        List<String> headers = new ArrayList<>();
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                headers.add(reader.header());
            }
        }
        return headers;
    }

    @Test
    void everySequenceIsEitherHeldOutOrTrainedOn() {
        FastaSource all = FastaSource.shipped();
        Set<String> before = Set.of();
        for (double fraction : new double[] {0.05, 0.1, 0.5, 0.9}) {
            var heldOut = new HeldOut(fraction);
            List<String> out = headers(all.only(heldOut));
            List<String> in = headers(all.without(heldOut));
            Set<String> both = new HashSet<>(out);
            both.addAll(in);
            assertEquals(398, out.size() + in.size());
            assertEquals(new HashSet<>(headers(all)), both);
            assertEquals(fraction, out.size() / 398.0, 0.06);
            assertTrue(new HashSet<>(out).containsAll(before), "a larger fraction holds out the same ones, and others");
            before = Set.copyOf(out);
        }
    }

    @Test
    void whereASequenceStandsDoesNotMatter() {
        byte[] letters = "xxMKTAYIAKQRQ".getBytes(StandardCharsets.US_ASCII);
        byte[] own = "MKTAYIAKQRQ".getBytes(StandardCharsets.US_ASCII);
        assertNotEquals(HeldOut.key(letters, 13), HeldOut.key(own, 11));
        var twice = FastaSource.of("twice", ">a\nMKTAY\n>b\nIAKQ\n>c\nmkt\nay\n".getBytes(StandardCharsets.US_ASCII));
        List<Long> keys = new ArrayList<>();
        try (var sequences = new FastaSequences(twice)) {
            while (sequences.advance()) {
                assertEquals(0, sequences.offset());
                assertTrue(sequences.residues().length >= sequences.length());
                keys.add(sequences.key());
            }
            assertFalse(sequences.advance());
            assertEquals(
                    "expected a call of advance() that returned true before",
                    assertThrows(IllegalStateException.class, sequences::key).getMessage());
        }
        assertEquals(3, keys.size());
        assertEquals(keys.get(0), keys.get(2));
        assertNotEquals(keys.get(0), keys.get(1));
    }

    @Test
    void aContentTellsItsPart() {
        FastaSource all = FastaSource.shipped();
        var heldOut = new HeldOut(0.1);
        assertEquals(
                all.content() + " without 0.1 of the sequences",
                all.without(heldOut).content());
        assertEquals(
                all.content() + " of which only 0.1 of the sequences",
                all.only(heldOut).content());
        FastaSource part = all.without(heldOut);
        assertEquals(
                "expected a source of all sequences, got uniprot.fasta.gz without 0.1 of the sequences",
                assertThrows(IllegalStateException.class, () -> part.only(heldOut))
                        .getMessage());
    }

    @Test
    void fractionsAreBetweenNothingAndAll() {
        for (double wrong : new double[] {0, 1, -0.5, Double.NaN}) {
            assertEquals(
                    "fraction: expected a number between 0 and 1, got " + wrong,
                    assertThrows(IllegalArgumentException.class, () -> new HeldOut(wrong))
                            .getMessage());
        }
    }
}
