package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.Batch;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class MaskingTest {
    private static final int LENGTH = 200_000;
    private final Masking masking = new Masking();

    private static int[] tokens(int length) {
        int[] ids = new int[length];
        for (int i = 0; i < length; i++) {
            ids[i] = EsmVocabulary.FIRST_RESIDUE + i % 27;
        }
        return ids;
    }

    /** Fails beyond five standard deviations of a binomial share. */
    private static void assertShare(double expected, double hits, double draws) {
        double tolerance = 5 * Math.sqrt(expected * (1 - expected) / draws);
        assertEquals(expected, hits / draws, tolerance);
    }

    @Test
    void sharesAreThoseOfThePaper() {
        int[] original = tokens(LENGTH);
        int[] ids = original.clone();
        int[] labels = new int[LENGTH];
        int chosen = masking.apply(ids, labels, 0, LENGTH, 7);
        int masked = 0;
        int same = 0;
        int[] replacements = new int[EsmVocabulary.SIZE];
        for (int i = 0; i < LENGTH; i++) {
            if (labels[i] == Batch.IGNORED) {
                assertEquals(original[i], ids[i]);
            } else {
                assertEquals(original[i], labels[i]);
                masked += ids[i] == EsmVocabulary.MASK ? 1 : 0;
                same += ids[i] == original[i] ? 1 : 0;
                replacements[ids[i]] += ids[i] != EsmVocabulary.MASK && ids[i] != original[i] ? 1 : 0;
            }
        }
        int replaced = Arrays.stream(replacements).sum();
        assertEquals(
                chosen, Arrays.stream(labels).filter(l -> l != Batch.IGNORED).count());
        assertShare(0.15, chosen, LENGTH);
        assertShare(0.8, masked, chosen);
        // A random residue is the former one once in 20, where the former one is one of the 20 at all.
        double coincidence = 0.1 * 20 / 27 / 20;
        assertShare(0.1 + coincidence, same, chosen);
        assertShare(0.1 - coincidence, replaced, chosen);
        for (int token = 0; token < EsmVocabulary.SIZE; token++) {
            boolean standard = token >= 4 && token < 24;
            assertEquals(standard, replacements[token] > 0, "token " + token);
        }
    }

    @Test
    void everyPlaceIsEquallyLikely() {
        int[] hits = new int[50];
        int[] labels = new int[50];
        for (int key = 0; key < 20_000; key++) {
            masking.apply(tokens(50), labels, 0, 50, key);
            for (int i = 0; i < 50; i++) {
                hits[i] += labels[i] == Batch.IGNORED ? 0 : 1;
            }
        }
        for (int hit : hits) {
            assertShare(0.15, hit, 20_000);
        }
    }

    @Test
    void sameKeySameMask() {
        int[] first = tokens(500);
        int[] second = tokens(500);
        int[] labels = new int[500];
        int[] again = new int[500];
        int chosen = masking.apply(first, labels, 0, 500, 3);
        masking.apply(tokens(500), new int[500], 0, 500, 4);
        assertEquals(chosen, new Masking().apply(second, again, 0, 500, 3));
        assertArrayEquals(first, second);
        assertArrayEquals(labels, again);
        masking.apply(second, again, 0, 500, 4);
        assertTrue(!Arrays.equals(labels, again));
    }

    @Test
    void touchesOnlyItsRangeAndChoosesAtLeastOne() {
        for (int length = 1; length < 20; length++) {
            for (int key = 0; key < 200; key++) {
                int[] ids = tokens(30);
                int[] labels = new int[30];
                Arrays.fill(labels, -7);
                int chosen = masking.apply(ids, labels, 5, length, key);
                assertTrue(chosen >= 1);
                int[] original = tokens(30);
                for (int i = 0; i < 30; i++) {
                    if (i < 5 || i >= 5 + length) {
                        assertEquals(-7, labels[i]);
                        assertEquals(original[i], ids[i]);
                    }
                }
            }
        }
    }
}
