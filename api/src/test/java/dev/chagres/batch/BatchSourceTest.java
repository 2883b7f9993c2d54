package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("L0")
@Timeout(60)
class BatchSourceTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 64);

    private static BatchSource open(int batches) {
        return open(NumberedSequences.drawn(4, 100), batches);
    }

    private static BatchSource open(TokenSequences sequences, int batches) {
        return new BatchSource(new SequencePacker(SHAPE, sequences), batches);
    }

    private static List<String> take(BatchSource source, int count, boolean slow) throws InterruptedException {
        var seen = new ArrayList<String>();
        for (int i = 0; i < count; i++) {
            Batch batch = source.take();
            assertNotNull(batch);
            int[] ids = Arrays.copyOf(batch.microBatch(0).ids(), batch.paddedTokens());
            int[] labels = Arrays.copyOf(batch.microBatch(0).labels(), batch.paddedTokens());
            seen.add(Arrays.hashCode(ids) + " " + Arrays.hashCode(labels));
            if (slow && i % 7 == 0) {
                Thread.sleep(2);
            }
            source.recycle(batch);
        }
        return seen;
    }

    @Test
    void batchesDoNotDependOnTimingOrDepth() throws InterruptedException {
        List<String> expected;
        try (BatchSource source = open(1)) {
            expected = take(source, 100, false);
        }
        try (BatchSource source = open(4)) {
            assertEquals(expected, take(source, 100, true));
        }
    }

    @Test
    void batchesAreReused() throws InterruptedException {
        try (BatchSource source = open(2)) {
            Batch first = source.take();
            Batch second = source.take();
            assertNotNull(first);
            assertNotNull(second);
            source.recycle(first);
            assertSame(first, source.take());
        }
    }

    @Test
    void aFailureComesAfterTheBatchesBeforeIt() throws InterruptedException {
        int[] lengths = new int[12];
        Arrays.fill(lengths, 60);
        NumberedSequences sequences = NumberedSequences.of(lengths);
        sequences.failsAt = 10;
        try (BatchSource source = open(sequences, 3)) {
            // Two sequences a batch; the fifth batch would be the one that fails while it looks for a third.
            take(source, 4, false);
            for (int i = 0; i < 2; i++) {
                assertSame(sequences.failure, assertThrows(IllegalArgumentException.class, source::take));
            }
        }
    }

    @Test
    void aFailureAtTheBeginningIsToldByPeek() {
        NumberedSequences sequences = NumberedSequences.of(1);
        sequences.failsAt = 0;
        try (BatchSource source = open(sequences, 2)) {
            assertSame(sequences.failure, assertThrows(IllegalArgumentException.class, source::peek));
        }
    }

    @Test
    void anErrorWhileReadingReachesTheConsumer() {
        NumberedSequences sequences = NumberedSequences.of(1);
        sequences.failsAt = 0;
        sequences.failure = new OutOfMemoryError("made up");
        try (BatchSource batches = open(sequences, 2)) {
            var e = assertThrows(IllegalStateException.class, batches::take);
            assertEquals("reading ahead failed: java.lang.OutOfMemoryError: made up", e.getMessage());
            assertSame(sequences.failure, e.getCause());
        }
    }

    @Test
    void theEndOfTheDataIsNoBatch() throws InterruptedException {
        try (BatchSource source = open(NumberedSequences.of(3, 4), 2)) {
            Batch only = source.take();
            assertNotNull(only);
            assertEquals(7, only.tokens());
            assertNull(source.peek());
            assertNull(source.take());
        }
    }

    @Test
    void peekShowsWhatTakeReturns() throws InterruptedException {
        try (BatchSource source = open(2)) {
            Batch shown = source.peek();
            assertNotNull(shown);
            assertSame(shown, source.peek());
            assertSame(shown, source.take());
            assertThrows(IllegalArgumentException.class, () -> source.recycle(new Batch(SHAPE)));
            source.recycle(shown);
        }
    }

    @Test
    void closeStopsTheReaderAndAWaitingConsumer() throws InterruptedException {
        BatchSource source = open(1);
        assertNotNull(source.take());
        var outcome = new AtomicReference<Throwable>();
        var started = new CountDownLatch(1);
        Thread consumer = Thread.ofPlatform().start(() -> {
            started.countDown();
            try {
                source.take();
            } catch (IllegalStateException | InterruptedException e) {
                outcome.set(e);
            }
        });
        started.await();
        Thread.sleep(20);
        source.close();
        consumer.join();
        assertEquals("BatchSource is closed", outcome.get().getMessage());
        assertEquals(
                "BatchSource is closed",
                assertThrows(IllegalStateException.class, source::take).getMessage());
        source.close();
        assertFalse(Thread.getAllStackTraces().keySet().stream()
                .anyMatch(t -> t.getName().equals("batch-reader") && t.isAlive()));
    }

    @Test
    void closeClosesTheSequences() {
        NumberedSequences sequences = NumberedSequences.drawn(1, 20);
        open(sequences, 1).close();
        assertTrue(sequences.closed);
    }

    @Test
    void refusesNoBatchesAndBatchesThatItDidNotGive() throws InterruptedException {
        var e = assertThrows(IllegalArgumentException.class, () -> open(0));
        assertEquals("batches: expected 1 to 1024, got 0", e.getMessage());
        try (BatchSource source = open(2)) {
            Batch batch = source.take();
            assertNotNull(batch);
            source.recycle(batch);
            e = assertThrows(IllegalArgumentException.class, () -> source.recycle(batch));
            assertEquals("batch: expected one taken from this source and not recycled yet", e.getMessage());
            var stranger = new Batch(SHAPE);
            assertNotNull(source.take());
            e = assertThrows(IllegalArgumentException.class, () -> source.recycle(stranger));
            assertEquals("batch: expected one taken from this source and not recycled yet", e.getMessage());
        }
    }

    /** Were anything made in each turn, no round could be free of it; what the JVM itself makes once is let pass. */
    @Test
    void aSteadyStepMakesNoObject() throws InterruptedException {
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE;
        try (BatchSource source = open(3)) {
            for (int round = 0; round < 10; round++) {
                long before = threads.getCurrentThreadAllocatedBytes();
                turn(source, 2_000);
                least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
            }
        }
        assertEquals(0, least);
    }

    private static void turn(BatchSource source, int count) throws InterruptedException {
        for (int i = 0; i < count; i++) {
            Batch batch = source.take();
            source.recycle(batch);
        }
    }
}
