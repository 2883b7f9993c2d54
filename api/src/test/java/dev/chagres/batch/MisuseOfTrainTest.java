package dev.chagres.batch;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.io.AtomicFile;
import java.nio.file.Path;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** What a training program is made of: wrong arguments are named, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
@SuppressWarnings({"DataFlowIssue", "NullAway"}) // Callers without a null checker pass null.
class MisuseOfTrainTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private static void missing(String argument, Executable call) {
        assertThrown(NullPointerException.class, argument + ": expected a value, got null", call);
    }

    private static Batch filled() {
        Batch batch = new Batch(SHAPE);
        try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20, 10))) {
            assertTrue(packer.fill(batch));
        }
        return batch;
    }

    @Test
    void nullsAreNamed(@TempDir Path folder) {
        missing("shape", () -> new Batch(null));
        missing("shape", () -> new SequencePacker(null, NumberedSequences.of(1)));
        missing("sequences", () -> new SequencePacker(SHAPE, null));
        missing("order", () -> new SequencePacker(SHAPE, NumberedSequences.of(1), null, DataPosition.START));
        missing("start", () -> new SequencePacker(SHAPE, NumberedSequences.of(1), PackingOrder.BEST_FIT, null));
        missing("packer", () -> new BatchSource(null, 1));
        missing("device", () -> new UploadRing(null, SHAPE, 1));
        missing("shape", () -> new UploadRing(device, null, 1));
        missing("stream", () -> new StepReadback(null, 1, 1));
        missing("name", () -> AtomicFile.isDirect(null));
        missing("name", () -> AtomicFile.part(null));
        try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20));
                UploadRing ring = new UploadRing(device, SHAPE, 1);
                AtomicFile file = AtomicFile.create(folder.resolve("report"))) {
            missing("batch", () -> packer.fill(null));
            missing("batch", () -> ring.upload(null));
            missing("scope", () -> ring.next(null));
            missing("bytes", () -> file.append(null));
            file.append(new byte[1]);
            file.publish();
        }
        try (BatchSource source = new BatchSource(new SequencePacker(SHAPE, NumberedSequences.of(20)), 1)) {
            missing("batch", () -> source.recycle(null));
        }
    }

    @Test
    void numbersOutOfTheirRange() {
        assertThrown(ARGUMENT, "batches: expected 1 to 1024, got 1025", () -> new UploadRing(device, SHAPE, 1025));
        try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20))) {
            assertThrown(
                    ARGUMENT,
                    "batches: expected 1 to 1024, got 2147483647",
                    () -> new BatchSource(packer, Integer.MAX_VALUE));
        }
        assertThrown(
                ARGUMENT,
                "microBatches, unread: expected 1 to 1048576 each, got 1 and 2147483647",
                () -> new StepReadback(device.stream(), 1, Integer.MAX_VALUE));
        Batch batch = filled();
        assertEquals(1, batch.share(0));
        String text = "index: expected that of one of 1 filled micro-batches, counted from 0, got ";
        assertThrown(IndexOutOfBoundsException.class, text + 1, () -> batch.microBatch(1));
        assertThrown(IndexOutOfBoundsException.class, text + -1, () -> batch.share(-1));
        assertThrown(
                ARGUMENT,
                "name: expected a path that ends with the name of a file, got /",
                () -> AtomicFile.part(Path.of("/")));
    }

    @Test
    void aReadbackTakesOneNumber() {
        try (Scope scope = device.openScope()) {
            Tensor one = scope.tensor(DType.FLOAT32, 1);
            one.set(device.stream(), 3f);
            Tensor two = scope.tensor(DType.FLOAT32, 2);
            StepReadback readback = new StepReadback(device.stream(), 1, 1);
            readback.begin();
            missing("loss", () -> readback.addLoss(null, 1));
            assertThrown(ARGUMENT, "loss: expected FLOAT32[1], got FLOAT32[2]", () -> readback.addLoss(two, 1));
            readback.addLoss(one, 1);
            missing("gradNorm", () -> readback.finish(null));
            assertThrown(ARGUMENT, "gradNorm: expected FLOAT32[1], got FLOAT32[2]", () -> readback.finish(two));
            readback.finish(one);
            missing("result", () -> readback.read(null));
            StepResult result = new StepResult();
            readback.read(result);
            assertEquals(3, result.loss(), "refused calls have lost nothing");
            readback.close();
            String closed = "the step readback of stream of device 0 is closed";
            assertThrown(STATE, closed, readback::begin);
            assertThrown(STATE, closed, () -> readback.addLoss(one, 1));
            assertThrown(STATE, closed, () -> readback.finish(one));
            assertThrown(STATE, closed, () -> readback.read(result));
        }
    }

    @Test
    void aRingOfOneDevice() {
        try (Device other = Device.open();
                Scope theirs = other.openScope();
                Scope scope = device.openScope()) {
            UploadRing ring = new UploadRing(device, SHAPE, 1);
            ring.upload(filled());
            assertThrown(
                    ARGUMENT,
                    "scope: expected one of device 0, where the batches are, got one of device 0, opened another time",
                    () -> ring.next(theirs));
            assertEquals(32, ring.next(scope).ids().size(0));
            ring.close();
            assertThrown(STATE, "the upload ring of device 0 is closed", () -> ring.upload(filled()));
            assertThrown(STATE, "the upload ring of device 0 is closed", () -> ring.next(scope));
        }
    }

    @Test
    void aBatchMayBeFilledAgain() {
        Batch batch = filled();
        try (SequencePacker other =
                new SequencePacker(new BatchShape(BatchLayout.PACKED, 64, 32), NumberedSequences.of(5))) {
            assertThrown(
                    ARGUMENT,
                    "batch: expected one made for " + other.shape() + ", got " + SHAPE,
                    () -> other.fill(batch));
        }
        assertArrayEquals(
                new int[] {0, 20, 30},
                java.util.Arrays.copyOf(batch.microBatch(0).cuSeqlens(), 3));
    }
}
