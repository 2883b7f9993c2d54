package dev.chagres.samples.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("L0")
@Timeout(60)
class BatchSourceTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 64);
    private static final String TEXT = Fasta.drawn(new Random(8), 50, 100);

    private static BatchSource open(String text, int batches) {
        var sequences = new ShuffledSequences(Fasta.source(text), 4, 1 << 20);
        return new BatchSource(new SequencePacker(SHAPE, sequences), batches);
    }

    private static List<String> take(BatchSource source, int count, boolean slow) throws InterruptedException {
        var seen = new ArrayList<String>();
        for (int i = 0; i < count; i++) {
            Batch batch = source.take();
            assertNotNull(batch);
            int[] ids = Arrays.copyOf(batch.ids(), batch.paddedTokens());
            int[] labels = Arrays.copyOf(batch.labels(), batch.paddedTokens());
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
        try (BatchSource source = open(TEXT, 1)) {
            expected = take(source, 100, false);
        }
        try (BatchSource source = open(TEXT, 4)) {
            assertEquals(expected, take(source, 100, true));
        }
    }

    @Test
    void batchesAreReused() throws InterruptedException {
        try (BatchSource source = open(TEXT, 2)) {
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
        // A window of one record: the reader meets the bad line only after batches were made.
        var text = new StringBuilder();
        for (int i = 0; i < 10; i++) {
            text.append(">s\n").append("A".repeat(100)).append('\n');
        }
        text.append(">bad\nMK7\n");
        var sequences = new ShuffledSequences(Fasta.source(text.toString()), 4, 1);
        try (var source = new BatchSource(new SequencePacker(SHAPE, sequences), 3)) {
            // Two sequences a batch; the fifth batch would be the one that meets the bad line while it looks for a
            // third.
            take(source, 4, false);
            for (int i = 0; i < 2; i++) {
                var e = assertThrows(FastaException.class, source::take);
                assertEquals(
                        "x.fasta:22: '7' at column 3: a sequence holds letters only, no position numbers",
                        e.getMessage());
            }
        }
    }

    @Test
    void aBadFileFailsAtTheFirstBatch() {
        try (BatchSource source = open("", 2)) {
            var e = assertThrows(FastaException.class, source::take);
            assertEquals("x.fasta:1: the file is empty; expected a '>' header line", e.getMessage());
        }
    }

    @Test
    void anErrorWhileReadingReachesTheConsumer() {
        var source = new FastaSource("x.fasta", true, () -> {
            throw new OutOfMemoryError("made up");
        });
        var packer = new SequencePacker(SHAPE, new ShuffledSequences(source, 1, 100));
        try (var batches = new BatchSource(packer, 2)) {
            var e = assertThrows(IllegalStateException.class, batches::take);
            assertEquals("reading ahead failed: java.lang.OutOfMemoryError: made up", e.getMessage());
        }
    }

    @Test
    void closeStopsTheReaderAndAWaitingConsumer() throws InterruptedException {
        BatchSource source = open(TEXT, 1);
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
    void closeClosesTheFile() {
        var closed = new boolean[1];
        var stream = new java.io.ByteArrayInputStream(Fasta.bytes(TEXT)) {
            @Override
            public void close() {
                closed[0] = true;
            }
        };
        var sequences = new ShuffledSequences(new FastaSource("x.fasta", true, () -> stream), 4, 1);
        new BatchSource(new SequencePacker(SHAPE, sequences), 1).close();
        assertTrue(closed[0] || stream.available() == Fasta.bytes(TEXT).length, "neither unopened nor closed");
    }

    @Test
    void refusesNoBatchesAndBatchesThatItDidNotGive() throws InterruptedException {
        var e = assertThrows(IllegalArgumentException.class, () -> open(TEXT, 0));
        assertEquals("batches: expected at least 1, got 0", e.getMessage());
        try (BatchSource source = open(TEXT, 2)) {
            Batch batch = source.take();
            assertNotNull(batch);
            source.recycle(batch);
            e = assertThrows(IllegalArgumentException.class, () -> source.recycle(batch));
            assertEquals("batch: this source did not give it out, or has it back", e.getMessage());
            var stranger = new Batch(SHAPE);
            assertNotNull(source.take());
            e = assertThrows(IllegalArgumentException.class, () -> source.recycle(stranger));
            assertEquals("batch: this source did not give it out, or has it back", e.getMessage());
        }
    }

    /** Were anything made in each turn, no round could be free of it; what the JVM itself makes once is let pass. */
    @Test
    void aSteadyStepMakesNoObject() throws InterruptedException {
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE;
        try (BatchSource source = open(TEXT, 3)) {
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
