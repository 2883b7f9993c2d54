package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.memory.Turns;
import dev.chagres.te.QkvFormat;
import java.lang.management.ManagementFactory;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
@Tag("L1")
@Timeout(60)
class UploadRingTest {
    private Device device;

    @BeforeEach
    void open() {
        device = Device.open();
    }

    @AfterEach
    void close() {
        if (device != null) {
            device.close();
        }
    }

    /** What a micro-batch must be on the device. */
    private record Expected(int[] ids, int[] labels, int[] offsets, double share, boolean last) {
        static void addAll(Batch batch, Deque<Expected> queue) {
            for (int i = 0; i < batch.microBatches(); i++) {
                MicroBatch part = batch.microBatch(i);
                queue.add(new Expected(
                        Arrays.copyOf(part.ids(), part.paddedTokens()),
                        Arrays.copyOf(part.labels(), part.paddedTokens()),
                        Arrays.copyOf(part.cuSeqlens(), part.sequences() + 1),
                        batch.share(i),
                        i == batch.microBatches() - 1));
            }
        }
    }

    private boolean compare(Expected expected, ModelInput input, BatchShape shape) {
        assertArrayEquals(expected.ids, input.ids().toInts(device.stream()));
        assertArrayEquals(expected.labels, input.labels().toInts(device.stream()));
        Sequences sequences = input.sequences();
        assertArrayEquals(expected.offsets, sequences.cuSeqlens().offsets().toInts(device.stream()));
        assertEquals(expected.ids.length, sequences.tokens());
        assertEquals(expected.offsets.length - 1, sequences.batch());
        if (shape.layout() == BatchLayout.PADDED) {
            assertEquals(QkvFormat.BSHD, sequences.format());
            assertEquals(shape.context(), sequences.length());
        } else {
            assertEquals(QkvFormat.THD, sequences.format());
        }
        assertEquals(expected.share, input.share());
        assertEquals(expected.last, input.isLast());
        return input.isLast();
    }

    @ParameterizedTest
    @CsvSource({"PACKED, 1", "PACKED, 3", "PADDED, 1", "PADDED, 3"})
    void everyMicroBatchArrivesInOrderAndWhole(BatchLayout layout, int microBatches) {
        var shape = new BatchShape(layout, 128 * microBatches, 32, microBatches);
        var batch = new Batch(shape);
        var queue = new ArrayDeque<Expected>();
        try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 40));
                var ring = new UploadRing(device, shape, 3);
                Scope scope = device.openScope()) {
            for (int step = 0; step < 12; step++) {
                // One to three batches ahead, each from the same arrays, which the upload has left.
                for (int ahead = queue.size() / microBatches; ahead <= step % 3; ahead++) {
                    assertTrue(packer.fill(batch));
                    Expected.addAll(batch, queue);
                    ring.upload(batch);
                }
                boolean last = false;
                while (!last) {
                    scope.restart();
                    last = compare(queue.remove(), ring.next(scope), shape);
                }
            }
        }
    }

    @Test
    void aShortLastBatchHasFewerMicroBatches() {
        var shape = new BatchShape(BatchLayout.PACKED, 96, 32, 3);
        var batch = new Batch(shape);
        var queue = new ArrayDeque<Expected>();
        try (var packer = new SequencePacker(shape, NumberedSequences.of(32, 20));
                var ring = new UploadRing(device, shape, 2);
                Scope scope = device.openScope()) {
            assertTrue(packer.fill(batch));
            Expected.addAll(batch, queue);
            ring.upload(batch);
            compare(queue.remove(), ring.next(scope), shape);
            assertTrue(compare(queue.remove(), ring.next(scope), shape));
            assertState("no batch waits to be computed; call upload(batch) first", () -> ring.next(scope));
        }
    }

    @Test
    void misuseIsRefused() {
        var shape = new BatchShape(BatchLayout.PACKED, 64, 32, 2);
        var batch = new Batch(shape);
        var other = new BatchShape(BatchLayout.PACKED, 64, 32);
        assertArgument("batches: expected 1 to 1024, got 0", () -> new UploadRing(device, shape, 0));
        try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 40));
                var ring = new UploadRing(device, shape, 2);
                Scope scope = device.openScope()) {
            assertArgument(
                    "batch: expected one made for " + shape + ", got " + other, () -> ring.upload(new Batch(other)));
            assertArgument("batch: expected at least one sequence, got an empty one", () -> ring.upload(batch));
            assertTrue(packer.fill(batch));
            ring.upload(batch);
            ring.upload(batch);
            String full = "all 2 batches of the ring wait to be computed; call next(scope) for each micro-batch of the"
                    + " oldest";
            assertState(full, () -> ring.upload(batch));
            ring.next(scope);
            assertState(full, () -> ring.upload(batch));
            assertTrue(ring.next(scope).isLast());
            ring.upload(batch);
            ring.close();
        }
    }

    private static void assertArgument(String message, Executable action) {
        assertEquals(
                message, assertThrows(IllegalArgumentException.class, action).getMessage());
    }

    private static void assertState(String message, Executable action) {
        assertEquals(message, assertThrows(IllegalStateException.class, action).getMessage());
    }

    /** Were anything made in each round, none could be free of it; what the JVM itself makes once is let pass. */
    @ParameterizedTest
    @CsvSource({"PACKED, 1", "PACKED, 2", "PADDED, 2"})
    void aSteadyRoundMakesNoObject(BatchLayout layout, int microBatches) {
        var shape = new BatchShape(layout, 128 * microBatches, 32, microBatches);
        var batches = new Batch[4];
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE;
        long held = 0;
        try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 40));
                var ring = new UploadRing(device, shape, 3);
                Scope scope = device.openScope()) {
            for (int i = 0; i < batches.length; i++) {
                batches[i] = new Batch(shape);
                assertTrue(packer.fill(batches[i]));
            }
            for (int round = 0; round < 20; round++) {
                long before = threads.getCurrentThreadAllocatedBytes();
                for (Batch batch : batches) {
                    ring.upload(batch);
                    boolean last = false;
                    while (!last) {
                        scope.restart();
                        last = ring.next(scope).isLast();
                    }
                }
                least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
                assertTrue(round < 3 || device.peakHeldBytes() == held, "device memory still grows");
                held = device.peakHeldBytes();
            }
        }
        assertEquals(0, least);
    }

    @Test
    void aScopeThatRepeatsGivesTheSameInput() {
        var shape = new BatchShape(BatchLayout.PACKED, 64, 32);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 40));
                var ring = new UploadRing(device, shape, 2);
                Scope scope = device.openScope()) {
            assertTrue(packer.fill(batch));
            ring.upload(batch);
            ModelInput first = ring.next(scope);
            ModelInput again = first;
            for (int restart = 0; restart < Turns.COUNT; restart++) {
                scope.restart();
                ring.upload(batch);
                again = ring.next(scope);
            }
            assertSame(first, again);
        }
    }
}
