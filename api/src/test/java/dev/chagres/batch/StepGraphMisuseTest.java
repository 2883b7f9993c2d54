package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Device;
import dev.chagres.pass.Pass;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a step graph refuses, and what it enqueues one by one instead. */
@Tag("L0")
@Tag("L1")
class StepGraphMisuseTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    @Test
    void saysWhatDoesNotFit() {
        try (Pass pass = Pass.training(device);
                UploadRing plain = new UploadRing(device, SHAPE, 1);
                UploadRing padded = UploadRing.padded(device, SHAPE, 1, 0)) {
            assertEquals(
                    "uploads: expected one from UploadRing.padded for " + SHAPE + ", got one that does not pad",
                    refusal(() -> new StepGraph(plain, SHAPE, pass, 1, _ -> {})));
            assertEquals(
                    "most: expected at least 1, got 0", refusal(() -> new StepGraph(padded, SHAPE, pass, 0, _ -> {})));
            assertEquals(
                    "padding: expected the id of a token, at least 0, got -2",
                    refusal(() -> UploadRing.padded(device, SHAPE, 1, -2)));
            StepGraph graph = new StepGraph(padded, SHAPE, pass, 1, _ -> {});
            assertEquals(
                    "no batch waits to be computed; call upload(batch) first",
                    assertThrows(IllegalStateException.class, graph::step).getMessage());
            graph.close();
            assertEquals(
                    "the step graph of stream of device 0 is closed",
                    assertThrows(IllegalStateException.class, graph::step).getMessage());
        }
    }

    /** What waits inside a step makes it run one by one, with the reason. */
    @Test
    void aStepThatWaitsIsEnqueuedOneByOne() {
        try (Pass pass = Pass.training(device);
                UploadRing uploads = UploadRing.padded(device, SHAPE, 1, 0)) {
            Batch batch = new Batch(SHAPE);
            int[] steps = new int[1];
            try (StepGraph graph = new StepGraph(uploads, SHAPE, pass, 1, inputs -> {
                pass.begin(inputs.getFirst().sequences());
                device.stream().synchronize();
                steps[0]++;
            })) {
                for (int i = 0; i < 4; i++) {
                    try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20))) {
                        packer.fill(batch);
                    }
                    uploads.upload(batch);
                    graph.step();
                }
                assertEquals(4, steps[0]);
                assertEquals(0, graph.replayed());
                assertTrue(
                        graph.explain()
                                .contains(
                                        "\n  enqueued one by one: synchronize: a stream of device 0 captures, and what waits for"
                                                + " the device or reads the host's memory cannot be part of a graph; call it before"
                                                + " Stream.capture or after the launch\n    "),
                        graph.explain());
            }
        }
    }

    @Test
    void stepAndCloseAreRefusedInsideAStep() {
        try (Pass pass = Pass.training(device);
                UploadRing uploads = UploadRing.padded(device, SHAPE, 1, 0)) {
            Batch batch = new Batch(SHAPE);
            try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20))) {
                packer.fill(batch);
            }
            uploads.upload(batch);
            StepGraph[] itself = new StepGraph[1];
            Runnable[] inside = new Runnable[1];
            try (StepGraph graph = new StepGraph(uploads, SHAPE, pass, 1, _ -> inside[0].run())) {
                itself[0] = graph;
                String reason =
                        ": called inside a step of the step graph of stream of device 0; call it when step() has"
                                + " returned";
                inside[0] = () -> itself[0].step();
                assertEquals(
                        "step" + reason,
                        assertThrows(IllegalStateException.class, graph::step).getMessage());
                inside[0] = () -> itself[0].close();
                assertEquals(
                        "close" + reason,
                        assertThrows(IllegalStateException.class, graph::step).getMessage());
                inside[0] = () -> {};
                graph.step();
                assertEquals(1, graph.enqueued());
            }
        }
    }

    @Test
    void everythingLiesOnOneDevice() {
        try (Device other = Device.open();
                Pass pass = Pass.training(device);
                UploadRing theirs = UploadRing.padded(other, SHAPE, 1, 0)) {
            assertEquals(
                    "uploads: expected one on device 0, where the pass computes, got one on device 0, opened another time",
                    refusal(() -> new StepGraph(theirs, SHAPE, pass, 1, _ -> {})));
        }
    }

    private static String refusal(Runnable call) {
        return assertThrows(IllegalArgumentException.class, call::run).getMessage();
    }
}
