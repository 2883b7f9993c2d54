package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import java.lang.management.ManagementFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

@Tag("L0")
@Tag("L1")
class StepReadbackTest {
    private final StepResult result = new StepResult();
    private Device device;
    private Scope scope;
    private Tensor loss;
    private Tensor norm;

    @BeforeEach
    void open() {
        device = Device.open();
        scope = device.openScope();
        loss = scope.tensor(DType.FLOAT32, 1);
        norm = scope.tensor(DType.FLOAT32, 1);
    }

    @AfterEach
    void close() {
        if (device != null) {
            device.close();
        }
    }

    private void addLoss(StepReadback readback, float value, double share) {
        loss.set(device.stream(), value);
        readback.addLoss(loss, share);
    }

    private void finish(StepReadback readback, float value) {
        norm.set(device.stream(), value);
        readback.finish(norm);
    }

    @Test
    void lossesAreAddedByTheirShares() {
        try (var readback = new StepReadback(device.stream(), 3, 2)) {
            readback.begin();
            addLoss(readback, 2.5f, 0.5);
            addLoss(readback, 1.5f, 0.25);
            addLoss(readback, 3, 0.25);
            finish(readback, 7);
            // The last step of ended data may have fewer micro-batches.
            readback.begin();
            addLoss(readback, 1.1f, 1);
            finish(readback, 8);
            readback.read(result);
            assertEquals(0.5 * 2.5 + 0.25 * 1.5 + 0.25 * 3, result.loss());
            assertEquals(7, result.gradNorm());
            readback.read(result);
            assertEquals(1.1f, result.loss());
            assertEquals(8, result.gradNorm());
        }
    }

    @Test
    void stepsAreReadInOrderWhileOthersAreUnderWay() {
        try (var readback = new StepReadback(device.stream(), 1, 2)) {
            for (int step = 0; step < 10; step++) {
                readback.begin();
                addLoss(readback, step, 1);
                finish(readback, -step);
                if (step > 0) {
                    readback.read(result);
                    assertEquals(step - 1, result.loss());
                    assertEquals(1 - step, result.gradNorm());
                    assertTrue(result.millis() >= 0 && result.millis() < 60_000, result.millis() + " ms");
                }
            }
        }
    }

    @Test
    void whatLiesBetweenStepsDoesNotCount() throws InterruptedException {
        try (var readback = new StepReadback(device.stream(), 1, 1)) {
            readback.restartClock();
            readback.begin();
            addLoss(readback, 1, 1);
            finish(readback, 1);
            assertState("restartClock: expected every step to be read, got 1 unread", readback::restartClock);
            readback.read(result);
            Thread.sleep(50);
            long began = System.nanoTime();
            readback.restartClock();
            readback.begin();
            addLoss(readback, 2, 1);
            finish(readback, 1);
            readback.read(result);
            double millis = (System.nanoTime() - began) / 1e6;
            assertTrue(result.millis() >= 0 && result.millis() < millis + 5, result.millis() + " of " + millis + " ms");
        }
    }

    @Test
    void scoresHaveTwoDimensionsAndClasses() {
        Tensor logits = scope.tensor(DType.FLOAT32, 2, 3);
        var scores = new TokenScores(logits, 0, 3);
        assertEquals(logits, scores.logits());
        assertEquals(
                "logits: expected [T, columns], got " + loss.dtype() + loss.shape(),
                assertThrows(IllegalArgumentException.class, () -> new TokenScores(loss, 0, 3))
                        .getMessage());
        assertEquals(
                "first: expected a class from 0 on, got -1",
                assertThrows(IllegalArgumentException.class, () -> new TokenScores(logits, -1, 3))
                        .getMessage());
        assertEquals(
                "classes: expected at least 1, got 0",
                assertThrows(IllegalArgumentException.class, () -> new TokenScores(logits, 0, 0))
                        .getMessage());
    }

    @Test
    void aStepThatFailedBeginsAnew() {
        try (var readback = new StepReadback(device.stream(), 1, 1)) {
            readback.begin();
            addLoss(readback, 5, 1);
            readback.begin();
            addLoss(readback, 6, 1);
            finish(readback, 1);
            readback.read(result);
            assertEquals(6, result.loss());
        }
    }

    @Test
    void callsOutOfOrderAreRefused() {
        var e = assertThrows(IllegalArgumentException.class, () -> new StepReadback(device.stream(), 0, 2));
        assertEquals("microBatches, unread: expected 1 to 1048576 each, got 0 and 2", e.getMessage());
        e = assertThrows(IllegalArgumentException.class, () -> new StepReadback(device.stream(), 1, 0));
        assertEquals("microBatches, unread: expected 1 to 1048576 each, got 1 and 0", e.getMessage());
        try (var readback = new StepReadback(device.stream(), 2, 1)) {
            assertState("no step is begun, 0 are finished; call begin() first", () -> readback.addLoss(loss, 1));
            assertState("no step is begun, 0 are finished; call begin() first", () -> readback.finish(norm));
            assertState("no result is unread, 0 steps were made", () -> readback.read(result));
            readback.begin();
            addLoss(readback, 1, 0.5);
            addLoss(readback, 1, 0.5);
            assertState("step 1 has the losses of its 2 micro-batches already", () -> readback.addLoss(loss, 0.5));
            finish(readback, 1);
            assertState("the result of step 1 must be read first", readback::begin);
            readback.read(result);
            readback.begin();
            finish(readback, 2);
            readback.close();
        }
    }

    private static void assertState(String message, Executable action) {
        assertEquals(message, assertThrows(IllegalStateException.class, action).getMessage());
    }

    /** Were anything made in each round, none could be free of it; what the JVM itself makes once is let pass. */
    @Test
    void aSteadyStepMakesNoObject() {
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE;
        try (var readback = new StepReadback(device.stream(), 2, 1)) {
            loss.set(device.stream(), 1f);
            norm.set(device.stream(), 1f);
            for (int round = 0; round < 20; round++) {
                long before = threads.getCurrentThreadAllocatedBytes();
                for (int step = 0; step < 10; step++) {
                    readback.begin();
                    readback.addLoss(loss, 0.5);
                    readback.addLoss(loss, 0.5);
                    readback.finish(norm);
                    readback.read(result);
                }
                least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
            }
        }
        assertEquals(0, least);
    }
}
