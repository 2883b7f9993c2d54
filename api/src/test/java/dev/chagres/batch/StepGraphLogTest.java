package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.Device;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Steps that are never replayed are told of in the log, each reason once. */
@Tag("L0")
@Tag("L1")
class StepGraphLogTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);
    private static final String BEGINNING = "StepGraph: steps are enqueued one by one: ";

    private final Device device = Device.open();
    private final Logger logger = Logger.getLogger("dev.chagres");
    private final List<String> warnings = new ArrayList<>();
    private final Handler handler = new Handler() {
        @Override
        public void publish(LogRecord logged) {
            if (logged.getLevel() == Level.WARNING) {
                warnings.add(logged.getMessage());
            }
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    };

    @BeforeEach
    void listen() {
        logger.addHandler(handler);
    }

    @AfterEach
    void closeDevice() {
        logger.removeHandler(handler);
        device.close();
    }

    /** Makes a step for each number, of as many sequences of 20 tokens. */
    private void run(Pass pass, int most, Runnable inside, int... numbers) {
        try (UploadRing uploads = UploadRing.padded(device, SHAPE, 1, 0);
                StepGraph graph = new StepGraph(uploads, SHAPE, pass, most, inputs -> {
                    pass.begin(inputs.getFirst().sequences());
                    inside.run();
                })) {
            Batch batch = new Batch(SHAPE);
            for (int number : numbers) {
                int[] lengths = new int[number];
                Arrays.fill(lengths, 20);
                try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(lengths))) {
                    packer.fill(batch);
                }
                uploads.upload(batch);
                graph.step();
            }
        }
    }

    @Test
    void eachReasonIsToldOnce() {
        try (Pass pass = Pass.training(device)) {
            run(pass, 4, device.stream()::synchronize, 1, 1, 1, 5, 5, 5);
        }
        assertEquals(
                List.of(BEGINNING
                        + "synchronize: a stream of device 0 captures, and what waits for the device or reads the host's"
                        + " memory cannot be part of a graph; call it before Stream.capture or after the launch"),
                warnings);
    }

    @Test
    void anObserverIsAReason() {
        try (Pass pass = Pass.training(device)) {
            pass.observe(new PassObserver() {
                @Override
                public void entering(Layer layer, Direction direction, Pass pass) {}

                @Override
                public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {}
            });
            run(pass, 4, () -> {}, 1, 1, 1, 1);
        }
        assertEquals(List.of(BEGINNING + "an observer listens to the pass, and reads the host's clock"), warnings);
    }

    @Test
    void tooFewBucketsAreAReason() {
        try (Pass pass = Pass.training(device)) {
            run(pass, 1, () -> {}, 1, 5, 1, 5);
        }
        assertEquals(
                List.of(BEGINNING
                        + "a bucket was closed for room before its second step, which is the first that can be replayed;"
                        + " keep more buckets than 1"),
                warnings);
    }

    @Test
    void replayedStepsAreNoReason() {
        try (Pass pass = Pass.training(device)) {
            run(pass, 1, () -> {}, 1, 1, 1, 5, 1, 5);
        }
        assertEquals(List.of(), warnings);
    }
}
