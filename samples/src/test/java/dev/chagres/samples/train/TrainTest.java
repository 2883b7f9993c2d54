package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
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
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

@Tag("L0")
@Timeout(60)
class TrainTest {
    private FakePlatform platform = new FakePlatform();
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private OutputStream stdout = out;
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    private int train(String... arguments) {
        return Train.run(
                () -> platform,
                new StandardOutput(stdout, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "--steps 0 | --steps: expected at least 1, got 0",
                "--steps many | Invalid value for option '--steps': 'many' is not an int",
                "--steps | Missing required parameter for option '--steps' (N)",
                "--model 9M | Invalid value for option '--model': expected one of tiny, 8M, 35M, 150M, 650M, 3B, 15B,"
                        + " got 9M",
                "--packing yes | Invalid value for option '--packing': expected one of on, off, got yes",
                "--recipe fp8 | Invalid value for option '--recipe': expected one of bf16, fp32, got fp8",
                "--provider gpu | Invalid value for option '--provider': expected one of auto, cuda, reference, got gpu",
                "--decay fast | Invalid value for option '--decay': expected one of constant, linear, cosine, got fast",
                "--tokens-per-step 8 | --tokens-per-step: expected at least 16, got 8",
                "--tokens-per-step 2040 | --tokens-per-step: expected a positive multiple of 16, got 2040",
                "--tokens-per-step 512 | --tokens-per-step: expected at least the context, 1024, so that the longest"
                        + " sequence fits; got 512",
                "--accumulate 0 | --accumulate: expected at least 1, got 0",
                "--accumulate 4 | --tokens-per-step, --accumulate: expected at least the context, 1024, in each"
                        + " micro-batch, so that the longest sequence fits; got 2048 tokens in 4, 512 each",
                "--accumulate 3 | --tokens-per-step, --accumulate: expected a positive multiple of 16 tokens for each of 3"
                        + " micro-batches, 48 in all, got 2048",
                "--context 2 | --context: expected at least 3 (<cls>, one residue, <eos>), got 2",
                "--context -5 | --context: expected at least 3 (<cls>, one residue, <eos>), got -5",
                "--context 1000 --packing off | --context: expected a multiple of 16 without packing, got 1000",
                "--learning-rate 0 | --learning-rate: expected a positive number, got 0.0",
                "--learning-rate NaN | --learning-rate: expected a positive number, got NaN",
                "--warm-up-steps 300 | --warm-up-steps: expected 0 to 200, the number of steps, got 300",
                "--seed x | Invalid value for option '--seed': 'x' is not a long",
                "--fasta= | --fasta: expected the name of a file, got an empty one",
                "--report= | --report: expected the name of a file, got an empty one",
                "--plot= | --plot: expected the name of a file, got an empty one",
                "--steps 2147483648 | Invalid value for option '--steps': '2147483648' is not an int",
                "--learning-rate 0,001 | Invalid value for option '--learning-rate': '0,001' is not a float",
                "--learning-rate 1e-60 | --learning-rate: expected a positive number, got 0.0",
                "--context 2147483647 | --tokens-per-step: expected at least the context, 2147483647, so that the longest"
                        + " sequence fits; got 2147483632",
                "--plot loss.jpg | --plot: expected a name that ends with .png, got loss.jpg",
                "--fasta a --report ./a | --report: ./a is the file of --fasta; name another one",
                "--plot a.png --report a.png | --plot: a.png is the file of --report; name another one",
                "--fasta a.part --report a | --report: a is called a.part until it is whole, and that is the file of"
                        + " --fasta; name another one",
                "--speed 3 | Unknown options: '--speed', '3'",
                "fast | Unmatched argument at index 0: 'fast'"
            })
    void wrongOptionsAreToldInOneLine(String arguments, String message) {
        assertEquals(2, train(arguments.strip().split(" ", -1)));
        assertEquals("train: " + message.strip() + " (train --help lists the options)" + System.lineSeparator(), err());
        assertEquals("", out());
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
    void helpNamesEveryOption() {
        assertEquals(0, train("--help"));
        for (String option : List.of(
                "model",
                "fasta",
                "steps",
                "tokens-per-step",
                "accumulate",
                "context",
                "packing",
                "recipe",
                "learning-rate",
                "seed",
                "provider",
                "report",
                "plot")) {
            assertTrue(out().contains("--" + option), option);
        }
        assertEquals("", err());
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
        assertTrue(out().contains(" over the last 10 steps"), out());
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
                options.plan(false),
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

    /** Standard output that takes so many bytes and then is a closed pipe. */
    private final class Closing extends OutputStream {
        private int left;

        Closing(int bytes) {
            left = bytes;
        }

        @Override
        public void write(int b) throws IOException {
            if (left-- <= 0) {
                throw new IOException("Broken pipe");
            }
            out.write(b);
        }
    }

    @Test
    void aRunThatNobodyHearsOfEndsBeforeItsFirstStep() {
        stdout = new Closing(40);
        assertEquals(1, train("--steps", "9"));
        assertEquals(
                "train: standard output cannot be written: Broken pipe; the run ends, since nothing would be left of it:"
                        + " ask for --report or --plot" + System.lineSeparator(),
                err());
        assertEquals("[]", platform.model.calls.toString());
        assertTrue(platform.closed && platform.model.closed);
    }

    @Test
    void aRunWithAReportGoesOnWithoutStandardOutput() throws IOException {
        stdout = new Closing(40);
        Path report = folder.resolve("r.jsonl");
        assertEquals(1, train("--steps", "9", "--report", report.toString()));
        assertEquals(
                "train: standard output cannot be written: Broken pipe; training goes on for --report or --plot",
                err().lines().findFirst().orElseThrow());
        assertEquals(1, err().lines().filter(line -> line.startsWith("train: ")).count(), err());
        assertEquals(10, Files.readAllLines(report).size());
    }

    @Test
    void aSummaryThatIsLostIsAFailure() {
        stdout = new Closing(250);
        assertEquals(1, train("--steps", "9"));
        assertTrue(out().contains("warm-up: "), out());
        assertEquals(
                "train: standard output cannot be written: Broken pipe",
                err().lines().toList().getLast());
    }

    @Test
    void helpThatIsLostIsAFailure() {
        stdout = new Closing(0);
        assertEquals(1, train("--help"));
        assertEquals("train: standard output cannot be written: Broken pipe" + System.lineSeparator(), err());
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
                out().lines().filter(l -> l.startsWith("warm-up")).findFirst().orElseThrow();
        assertTrue(line.matches("warm-up, builds kernels and attention plans: 0\\.[1-9] s"), line);
        // Steps of 10, 20 and 30 ms by the model's own clock.
        assertTrue(out().contains(" tokens in 0.1 s, padding "), out());
    }

    @Test
    void theRateIsThatOfTheLastHalf() {
        assertEquals(0, train("--steps", "300"));
        String line =
                out().lines().filter(l -> l.contains("tokens/s")).findFirst().orElseThrow();
        assertTrue(line.matches("[0-9,]+ tokens/s over the last 100 steps"), line);
        platform = new FakePlatform();
        out.reset();
        assertEquals(0, train("--steps", "5"));
        assertTrue(out().contains(" tokens/s over the last 3 steps"), out());
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
        String project = pom.replaceFirst("(?s).*?<version>(.*?)</version>.*", "$1");
        assertEquals(0, train("--version"));
        assertEquals("Chagres " + project + System.lineSeparator(), out());
        Path report = folder.resolve("r.jsonl");
        assertEquals(0, train("--steps", "1", "--report", report.toString()));
        assertEquals(
                project, JSON.std.mapFrom(Files.readAllLines(report).getFirst()).get("version"));
    }
}
