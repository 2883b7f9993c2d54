package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.samples.data.Batch;
import dev.chagres.samples.data.BatchLayout;
import dev.chagres.samples.data.BatchShape;
import dev.chagres.samples.data.FastaSource;
import dev.chagres.samples.data.SequencePacker;
import dev.chagres.samples.data.ShuffledSequences;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class ReportWriterTest {
    private static final RunDescription RUN = new RunDescription(
            "reference", "CPU \"quoted\"", Map.of("te", "2.20.2", "cudnn", "9.19.0"), "8M", 7_511_041, 42);

    @TempDir
    private Path folder;

    private Path file;

    @BeforeEach
    void name() {
        file = folder.resolve("report.jsonl");
    }

    private static StepMetrics step(int number, double peakFlops) {
        var shape = new BatchShape(BatchLayout.PACKED, 512, 256);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, new ShuffledSequences(FastaSource.shipped(), 1, 1 << 20))) {
            packer.fill(batch);
        }
        var metrics = new StepMetrics();
        metrics.begin(number, batch, 1e9, 4e-4f);
        var result = new StepResult();
        result.set(3.25, 1.5, 250);
        metrics.complete(result, peakFlops, 1 << 20);
        return metrics;
    }

    @Test
    void linesHoldExactlyTheNamedKeys() throws IOException {
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.step(step(1, Double.NaN));
            report.step(step(2, 1e12));
            report.finish();
        }
        List<String> lines = Files.readAllLines(file);
        assertEquals(3, lines.size());
        Map<String, Object> head = JSON.std.mapFrom(lines.get(0));
        assertEquals(
                "[provider, device, libraries, model, parameters, seed]",
                head.keySet().toString());
        assertEquals("CPU \"quoted\"", head.get("device"));
        assertEquals("{cudnn=9.19.0, te=2.20.2}", head.get("libraries").toString());
        assertEquals(7_511_041, head.get("parameters"));
        Map<String, Object> first = JSON.std.mapFrom(lines.get(1));
        assertEquals(
                "[step, loss, tokens, paddedTokens, stepMillis, tokensPerSecond, gradNorm, learningRate, memoryBytes,"
                        + " mfu]",
                first.keySet().toString());
        assertTrue(first.containsKey("mfu") && first.get("mfu") == null);
        assertEquals(1, first.get("step"));
        assertEquals(3.25, first.get("loss"));
        assertEquals(4e-4, first.get("learningRate"));
        assertEquals(250.0, first.get("stepMillis"));
        assertEquals(4.0 * (int) first.get("tokens"), first.get("tokensPerSecond"));
        assertEquals(0.004, (double) JSON.std.mapFrom(lines.get(2)).get("mfu"), 1e-12);
    }

    @Test
    void theNameAppearsOnlyWhenTheReportIsWhole() throws IOException {
        Files.writeString(file, "an older report");
        Path part = folder.resolve("report.jsonl.part");
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            assertEquals(1, Files.readAllLines(part).size());
            assertEquals("an older report", Files.readString(file));
        }
        assertEquals("an older report", Files.readString(file));
        assertTrue(Files.exists(part));
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.finish();
            report.finish();
        }
        assertFalse(Files.exists(part));
        assertEquals(1, Files.readAllLines(file).size());
    }

    @Test
    void discardLeavesNothing() throws IOException {
        try (var report = new ReportWriter(file)) {
            report.begin(RUN);
            report.discard();
        }
        try (var files = Files.list(folder)) {
            assertEquals(0, files.count());
        }
    }

    @Test
    void aFullDiskIsToldInOneLine() {
        Path full = Path.of("/dev/full");
        Assumptions.assumeTrue(Files.exists(full), "this system has no /dev/full");
        try (var report = new ReportWriter(full)) {
            var e = assertThrows(TrainingException.class, () -> report.begin(RUN));
            assertEquals("/dev/full: cannot be written: No space left on device", e.getMessage());
        }
        assertTrue(Files.exists(full));
    }

    @Test
    void aDeviceIsWrittenToDirectly() {
        Path none = Path.of("/dev/null");
        Assumptions.assumeTrue(Files.exists(none), "this system has no /dev/null");
        try (var report = new ReportWriter(none)) {
            report.begin(RUN);
            report.finish();
        }
        assertFalse(Files.isRegularFile(none));
        assertFalse(Files.exists(Path.of("/dev/null.part")));
    }

    @Test
    void placesThatCannotBeWrittenAreToldAtOnce() {
        Path absent = folder.resolve("absent/report.jsonl");
        var e = assertThrows(TrainingException.class, () -> new ReportWriter(absent));
        assertEquals(absent + ": cannot be written: its folder does not exist", e.getMessage());
        e = assertThrows(TrainingException.class, () -> new ReportWriter(folder));
        assertEquals(folder + ": is a directory; --report expects a file", e.getMessage());
    }
}
