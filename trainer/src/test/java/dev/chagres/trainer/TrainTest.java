package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

@Tag("L0")
@Timeout(60)
class TrainTest {
    private FakePlatform platform = new FakePlatform();
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    private int train(String... arguments) {
        return Train.run(
                () -> platform,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    @Test
    void batchesThatTheHeapCannotHoldAreToldInOneLine() {
        assertEquals(1, train("--tokens-per-step", "2147483632"));
        assertTrue(
                err().matches("train: the Java heap is too small for such batches \\(.*\\); lower --tokens-per-step or"
                        + " --context, or enlarge it: CHAGRES_JAVA_OPTIONS=-Xmx8g\\R"),
                err());
    }

    @Test
    void moreStepsThanMemoryHasRoomForBegin() {
        platform.model.spoilStep3 = true;
        assertEquals(1, train("--steps", "2147483647"));
        assertTrue(err().strip().endsWith("lower --learning-rate"), err());
    }

    @Test
    void linksStayLinks() throws IOException {
        Path report = Files.writeString(folder.resolve("r.jsonl"), "old");
        Path plot = folder.resolve("p.png");
        Files.write(plot, new byte[1]);
        Path reportLink = Files.createSymbolicLink(folder.resolve("link.jsonl"), report.getFileName());
        Path plotLink = Files.createSymbolicLink(folder.resolve("link.png"), plot.getFileName());
        assertEquals(0, train("--steps", "2", "--report", reportLink.toString(), "--plot", plotLink.toString()), err());
        assertTrue(Files.isSymbolicLink(reportLink) && Files.isSymbolicLink(plotLink));
        assertEquals(3, Files.readAllLines(report).size());
        assertTrue(Files.size(plot) > 1000);
        try (var files = Files.list(folder)) {
            assertEquals(4, files.count());
        }
    }

    @Test
    void picturesAreNoStreams() {
        assertEquals(1, train("--steps", "2", "--plot", "/dev/x.png"));
        assertEquals(
                "train: /dev/x.png: is no place for a picture; --plot expects a file" + System.lineSeparator(), err());
    }

    @Test
    void aRunWritesReportPictureAndSummary() throws IOException {
        Path report = folder.resolve("r.jsonl");
        Path plot = folder.resolve("p.png");
        assertEquals(
                0, train("--steps", "12", "--report", report.toString(), "--plot", plot.toString(), "--seed", "7"));
        List<String> lines = Files.readAllLines(report);
        assertEquals(13, lines.size());
        assertEquals(7, JSON.std.mapFrom(lines.getFirst()).get("seed"));
        assertEquals("tiny", JSON.std.mapFrom(lines.getFirst()).get("model"));
        assertEquals(12, JSON.std.mapFrom(lines.getLast()).get("step"));
        assertTrue(Files.size(plot) > 1000);
        assertTrue(err().startsWith("step 1/12  loss "), err());
        assertTrue(err().contains("step 12/12  loss "), err());
        assertTrue(err().strip().endsWith("left 0:00:00"), err());
        assertTrue(out().startsWith("ESM-2 tiny: 1,234 parameters, fp32 on CPU (reference)"), out());
        assertTrue(
                out().contains("uniprot.fasta.gz, 12 steps of up to 2,048 tokens, context 1,024, packing on, seed 7"));
        assertTrue(out().contains(" at the end (mean of the last 10 of 12 steps)"), out());
        assertTrue(out().contains(" tokens/s (mean of the last 6 of 12 steps)"), out());
        assertTrue(out().contains("report: " + report), out());
        assertTrue(out().contains("plot: " + plot), out());
        assertTrue(platform.closed && platform.model.closed);
    }

    @Test
    void aGpuHasLargerDefaultsAndAnMfu() throws IOException {
        platform.gpu = true;
        Path report = folder.resolve("r.jsonl");
        assertEquals(0, train("--steps", "2", "--report", report.toString()));
        assertTrue(out().startsWith("ESM-2 8M: 1,234 parameters, bf16 on NVIDIA H200 (cuda)"), out());
        assertTrue(out().contains("2 steps of up to 16,384 tokens"), out());
        assertTrue(out().contains(", MFU "), out());
        assertTrue(
                (double) JSON.std.mapFrom(Files.readAllLines(report).getLast()).get("mfu") > 0);
    }

    @Test
    void oneStepIsNotCalledSteps() {
        assertEquals(0, train("--steps", "1"));
        assertTrue(out().contains("uniprot.fasta.gz, 1 step of up to 2,048 tokens"), out());
        assertFalse(out().contains("1 steps"), out());
    }

    @Test
    void packingOffTakesOneSequenceARow() throws IOException {
        Path report = folder.resolve("r.jsonl");
        assertEquals(0, train("--steps", "3", "--packing", "off", "--context", "64", "--report", report.toString()));
        assertEquals(
                2048, JSON.std.mapFrom(Files.readAllLines(report).getLast()).get("paddedTokens"));
    }

    @Test
    void aStepOfMicroBatchesCountsThemAll() throws IOException {
        Path report = folder.resolve("r.jsonl");
        assertEquals(
                0,
                train(
                        "--steps",
                        "3",
                        "--packing",
                        "off",
                        "--context",
                        "64",
                        "--accumulate",
                        "4",
                        "--report",
                        "" + report));
        List<String> lines = Files.readAllLines(report);
        assertEquals(4, JSON.std.mapFrom(lines.getFirst()).get("accumulate"));
        assertEquals(2048, JSON.std.mapFrom(lines.getLast()).get("paddedTokens"));
        assertTrue(out().contains("3 steps of up to 2,048 tokens in 4 micro-batches, context 64"), out());
    }

    @Test
    void badDataIsToldInOneLineAndLeavesNoReport() throws IOException {
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKX7\n");
        Path report = folder.resolve("r.jsonl");
        assertEquals(1, train("--fasta", fasta.toString(), "--report", report.toString()));
        assertEquals(
                "train: " + fasta + ":2: '7' at column 4: a sequence holds letters only, no position numbers"
                        + System.lineSeparator(),
                err());
        try (var files = Files.list(folder)) {
            assertEquals(1, files.count());
        }
    }

    @Test
    void aFailureMidwayNamesTheStepsThatAreTrue() throws IOException {
        platform.model.spoilStep3 = true;
        Path report = folder.resolve("r.jsonl");
        assertEquals(
                1,
                train(
                        "--steps",
                        "9",
                        "--learning-rate",
                        "1",
                        "--warm-up-steps",
                        "0",
                        "--decay",
                        "constant",
                        "--report",
                        report.toString()));
        assertEquals(
                "train: step 3: the loss is NaN at learning rate 1.0; lower --learning-rate (the 2 steps before are in "
                        + report + ".part)",
                err().lines().toList().getLast());
        assertFalse(Files.exists(report));
        assertEquals(3, Files.readAllLines(folder.resolve("r.jsonl.part")).size());
    }

    @Test
    void aRunThatMadeNoStepLeavesAnOlderReportAndPicture() throws Exception {
        Path report = Files.writeString(folder.resolve("r.jsonl"), "older");
        Path plot = Files.writeString(folder.resolve("p.png"), "older");
        var options = new TrainOptions();
        new CommandLine(options).parseArgs("--report", report.toString(), "--plot", plot.toString());
        var session = new TrainingSession(
                options.plan(false, 1),
                platform,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8));
        session.stop();
        session.train();
        assertEquals("older older", Files.readString(report) + " " + Files.readString(plot));
        assertTrue(out().endsWith("stopped after 0 of 200 steps" + System.lineSeparator()), out());
        try (var files = Files.list(folder)) {
            assertEquals(2, files.count());
        }
    }

    @Test
    void aFullDiskEndsTheRunInOneLine() {
        assertEquals(1, train("--steps", "9", "--report", "/dev/full"));
        assertEquals("train: /dev/full: cannot be written: No space left on device" + System.lineSeparator(), err());
    }

    @Test
    void theWarmUpComesBeforeTheFirstStepAndCountsForNothing() {
        platform.gpu = true;
        platform.model.onWarmUp = () -> {
            try {
                Thread.sleep(150);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        };
        assertEquals(0, train("--steps", "3"), err());
        assertEquals(
                "[warmUp1, upload0, step0, ", platform.model.calls.toString().substring(0, 26));
        String line =
                out().lines().filter(l -> l.startsWith("building")).findFirst().orElseThrow();
        assertTrue(line.matches("building kernels and attention plans: 0\\.[1-9] s"), line);
        // Steps of 10, 20 and 30 ms by the model's own clock.
        assertTrue(out().contains(" tokens in 0.1 s, padding "), out());
    }

    @Test
    void theRateIsThatOfTheLastHalf() {
        assertEquals(0, train("--steps", "300"));
        String line =
                out().lines().filter(l -> l.contains("tokens/s")).findFirst().orElseThrow();
        assertTrue(line.matches("[0-9,]+ tokens/s \\(mean of the last 100 of 300 steps\\)"), line);
        platform = new FakePlatform();
        out.reset();
        assertEquals(0, train("--steps", "5"));
        assertTrue(out().contains(" tokens/s (mean of the last 3 of 5 steps)"), out());
        platform = new FakePlatform();
        out.reset();
        assertEquals(0, train("--steps", "1"));
        assertTrue(out().contains(" tokens/s" + System.lineSeparator()), out());
    }

    @Test
    void theSeedDecidesTheLosses() throws IOException {
        var losses = new ArrayList<String>();
        for (String seed : List.of("1", "1", "2")) {
            platform = new FakePlatform();
            Path report = folder.resolve("r.jsonl");
            assertEquals(0, train("--steps", "5", "--seed", seed, "--report", report.toString()));
            var run = new ArrayList<Object>();
            for (String line : Files.readAllLines(report)) {
                run.add(JSON.std.mapFrom(line).get("loss"));
            }
            losses.add(run.toString());
        }
        assertEquals(losses.get(0), losses.get(1));
        assertFalse(losses.get(0).equals(losses.get(2)));
    }

    @Test
    void versionOptionAndReportNameTheProjectsVersion() throws IOException {
        String pom = Files.readString(Path.of("").toAbsolutePath().getParent().resolve("pom.xml"));
        String project = pom.replaceFirst("(?s).*?<revision>(.*?)</revision>.*", "$1");
        assertEquals(0, train("--version"));
        assertEquals("Chagres " + project + System.lineSeparator(), out());
        Path report = folder.resolve("r.jsonl");
        assertEquals(0, train("--steps", "1", "--report", report.toString()));
        assertEquals(
                project, JSON.std.mapFrom(Files.readAllLines(report).getFirst()).get("version"));
    }
}
