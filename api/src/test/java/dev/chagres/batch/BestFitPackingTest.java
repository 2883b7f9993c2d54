package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Micro-batches that are filled up with sequences further ahead. */
@Tag("L0")
class BestFitPackingTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 192, 64, 2);

    private static int[] lengths(Random random, int count) {
        return IntStream.range(0, count).map(i -> 1 + random.nextInt(80)).toArray();
    }

    /** What the rule of {@link PackingOrder#BEST_FIT} chooses from a list: the numbers of a micro-batch's sequences. */
    private static List<Integer> choose(int[] lengths, BitSet taken) {
        var chosen = new ArrayList<Integer>();
        int room = SHAPE.tokensPerMicroBatch();
        for (int next = taken.nextClearBit(0); next < lengths.length; next = taken.nextClearBit(0)) {
            int best = -1;
            for (int i = next; i <= Math.min(next + SequencePacker.LOOK_AHEAD, lengths.length - 1); i++) {
                boolean longer = best < 0 || clipped(lengths[i]) > clipped(lengths[best]) && best != next;
                if (!taken.get(i) && clipped(lengths[i]) <= room && longer) {
                    best = i;
                }
            }
            if (best < 0) {
                break;
            }
            taken.set(best);
            chosen.add(best);
            room -= clipped(lengths[best]);
        }
        return chosen;
    }

    private static int clipped(int length) {
        return Math.min(length, SHAPE.context());
    }

    /** Finds the number of each sequence by its tokens. */
    private static List<List<Integer>> numbers(Batch batch, int count) {
        var all = new ArrayList<List<Integer>>();
        for (int part = 0; part < batch.microBatches(); part++) {
            MicroBatch one = batch.microBatch(part);
            var numbers = new ArrayList<Integer>();
            for (int i = 0; i < one.realSequences(); i++) {
                int begin = one.cuSeqlens()[i];
                int number = IntStream.range(0, count)
                        .filter(each -> NumberedSequences.token(each, 0) == one.ids()[begin])
                        .findFirst()
                        .orElseThrow();
                for (int t = begin; t < one.cuSeqlens()[i + 1]; t++) {
                    assertEquals(NumberedSequences.token(number, t - begin), one.ids()[t]);
                    assertEquals(NumberedSequences.label(number, t - begin), one.labels()[t]);
                }
                numbers.add(number);
            }
            all.add(numbers);
        }
        return all;
    }

    private static SequencePacker packer(int[] lengths, PackingOrder order, DataPosition start) {
        NumberedSequences sequences = NumberedSequences.of(lengths);
        for (long i = 0; i < start.next(); i++) {
            sequences.advance();
        }
        return new SequencePacker(SHAPE, sequences, order, start);
    }

    @RepeatedTest(40)
    void eachMicroBatchHoldsWhatTheRuleChooses() {
        long seed = System.nanoTime();
        System.out.println("BestFitPackingTest seed " + seed);
        Random random = new Random(seed);
        int count = 30; // Token values repeat after more sequences.
        int[] lengths = lengths(random, count);
        BitSet taken = new BitSet();
        var batch = new Batch(SHAPE);
        try (var packer = packer(lengths, PackingOrder.BEST_FIT, DataPosition.START)) {
            while (packer.fill(batch)) {
                for (List<Integer> numbers : numbers(batch, count)) {
                    assertEquals(choose(lengths, taken), numbers, Arrays.toString(lengths));
                }
                assertEquals(taken.nextClearBit(0), batch.end().next());
            }
        }
        assertEquals(count, taken.cardinality());
        assertEquals(new DataPosition(count, 0), batch.end());
    }

    /** Another packer goes on after any batch, in the same order or as the rest is given, and each sequence comes once. */
    @RepeatedTest(20)
    void anotherPackerGoesOn() {
        long seed = System.nanoTime();
        System.out.println("BestFitPackingTest seed " + seed);
        Random random = new Random(seed);
        int count = 30;
        int[] lengths = lengths(random, count);
        var batches = new ArrayList<List<List<Integer>>>();
        var ends = new ArrayList<>(List.of(DataPosition.START));
        var batch = new Batch(SHAPE);
        try (var packer = packer(lengths, PackingOrder.BEST_FIT, DataPosition.START)) {
            while (packer.fill(batch)) {
                batches.add(numbers(batch, count));
                ends.add(batch.end());
            }
        }
        for (int first = 0; first < batches.size(); first++) {
            for (PackingOrder order : PackingOrder.values()) {
                var rest = new ArrayList<List<List<Integer>>>();
                try (var packer = packer(lengths, order, ends.get(first))) {
                    while (packer.fill(batch)) {
                        rest.add(numbers(batch, count));
                    }
                }
                if (order == PackingOrder.BEST_FIT) {
                    assertEquals(batches.subList(first, batches.size()), rest);
                }
                List<Integer> expected = flat(batches.subList(first, batches.size()));
                assertEquals(expected, flat(rest));
                assertEquals(new DataPosition(count, 0), batch.end());
            }
        }
    }

    private static List<Integer> flat(List<List<List<Integer>>> batches) {
        return batches.stream()
                .flatMap(List::stream)
                .flatMap(List::stream)
                .sorted()
                .toList();
    }

    @Test
    void microBatchesAreFuller() {
        var shape = new BatchShape(BatchLayout.PACKED, 4 * 8192, 1024, 4);
        double[] shares = new double[2];
        for (PackingOrder order : PackingOrder.values()) {
            var batch = new Batch(shape);
            long used = 0;
            try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 1024), order, DataPosition.START)) {
                for (int i = 0; i < 50; i++) {
                    assertTrue(packer.fill(batch));
                    used += batch.tokens();
                }
            }
            shares[order.ordinal()] = used / (50.0 * shape.tokensPerStep());
        }
        assertTrue(shares[0] < 0.97 && shares[1] > 0.99, Arrays.toString(shares));
    }

    /** The sequences before the one that cannot be read are trained. */
    @Test
    void aFailureAheadIsThrownWhenItsSequenceIsNeeded() {
        NumberedSequences sequences = NumberedSequences.of(60, 60, 20, 10, 5, 60);
        sequences.failsAt = 4;
        var batch = new Batch(new BatchShape(BatchLayout.PACKED, 96, 64));
        try (var packer = new SequencePacker(batch.shape(), sequences, PackingOrder.BEST_FIT, DataPosition.START)) {
            assertTrue(packer.fill(batch));
            assertEquals(List.of(List.of(0, 2, 3)), numbers(batch, 6));
            assertEquals(new DataPosition(1, 3), batch.end());
            assertFails(IllegalArgumentException.class, "made up", () -> packer.fill(batch));
            assertFails(IllegalArgumentException.class, "made up", () -> packer.fill(batch));
        }
    }

    @Test
    void aFailureIsThrownByEachFurtherCall() {
        for (PackingOrder order : PackingOrder.values()) {
            NumberedSequences sequences = NumberedSequences.of(60, 60, 20, 10);
            sequences.failsAt = 1;
            var batch = new Batch(new BatchShape(BatchLayout.PACKED, 160, 64));
            try (var packer = new SequencePacker(batch.shape(), sequences, order, DataPosition.START)) {
                for (int i = 0; i < 2; i++) {
                    assertFails(IllegalArgumentException.class, "made up", () -> packer.fill(batch));
                }
                assertEquals(DataPosition.START, batch.end());
            }
        }
    }

    @Test
    void paddedRowsTakeSequencesAsTheyCome() {
        var shape = new BatchShape(BatchLayout.PADDED, 128, 64);
        var batch = new Batch(shape);
        try (var packer =
                new SequencePacker(shape, NumberedSequences.of(10, 64, 3), PackingOrder.BEST_FIT, DataPosition.START)) {
            assertTrue(packer.fill(batch));
            assertEquals(74, batch.tokens());
            assertTrue(packer.fill(batch));
            assertEquals(3, batch.tokens());
            assertFalse(packer.fill(batch));
        }
    }

    private static void assertFails(Class<? extends RuntimeException> type, String text, Runnable call) {
        assertEquals(text, assertThrows(type, call::run).getMessage());
    }

    @Test
    void positionsAreChecked() {
        assertFails(
                IllegalArgumentException.class,
                "next: expected a number of sequences from 0 on, got -1",
                () -> new DataPosition(-1, 0));
        for (long wrong : new long[] {-1, 1L << 32}) {
            assertFails(
                    IllegalArgumentException.class,
                    "takenAhead: expected the bits of 32 sequences, 0 to 4294967295, got " + wrong,
                    () -> new DataPosition(0, wrong));
        }
    }
}
