package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("L0")
@Timeout(60)
class BatchSourceStopTest {
    private static BatchSource open(TokenSequences sequences) {
        var shape = new BatchShape(BatchLayout.PACKED, 128, 64);
        return new BatchSource(new SequencePacker(shape, sequences), 2);
    }

    /** Sequences that come from a pipe to which nobody writes: the read neither ends nor minds an interrupt. */
    private static final class Stalled implements TokenSequences {
        private final CountDownLatch reading = new CountDownLatch(1);
        private final CountDownLatch end = new CountDownLatch(1);
        private volatile boolean closed;

        @Override
        public boolean advance() {
            reading.countDown();
            while (end.getCount() > 0) {
                try {
                    end.await();
                } catch (InterruptedException e) {
                    continue;
                }
            }
            return false;
        }

        @Override
        public int length() {
            return 1;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            return 0;
        }

        @Override
        public int padding() {
            return 0;
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    @Test
    void stopEndsTheWaitForAStalledSourceAndCloseLeavesItBehind() throws InterruptedException {
        var stalled = new Stalled();
        long began = System.nanoTime();
        try (BatchSource source = open(stalled)) {
            stalled.reading.await();
            Thread stopper = Thread.ofPlatform().start(source::stop);
            assertNull(source.take());
            assertNull(source.peek());
            stopper.join();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        assertTrue(seconds < 5, seconds + " s");
        assertFalse(stalled.closed);
        stalled.end.countDown();
        while (!stalled.closed) {
            Thread.sleep(5);
        }
    }

    @Test
    void stopEndsTheBatchesAlsoThoseThatAreThere() throws InterruptedException {
        try (BatchSource source = open(NumberedSequences.drawn(4, 100))) {
            assertNotNull(source.peek());
            source.stop();
            assertNull(source.take());
        }
    }
}
