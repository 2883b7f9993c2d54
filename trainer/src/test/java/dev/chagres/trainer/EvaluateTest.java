package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Evaluation in {@code train}, and the command {@code evaluate}, through the whole program. */
@Tag("L0")
@Timeout(120)
class EvaluateTest {
    private static final String RECIPE = Provider.current() == Provider.REFERENCE ? "fp32" : "bf16";

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();
    private final FakePlatform platform = new FakePlatform();

    @TempDir
    private Path folder;

    private int train(Platform.Opener opener, String... arguments) {
        out.reset();
        err.reset();
        return Train.run(
                opener,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private int train(String... arguments) {
        String[] common = {"--model=tiny", "--context=64", "--tokens-per-step=512", "--recipe=" + RECIPE};
        return train(
                DevicePlatform::open,
                Stream.concat(Arrays.stream(common), Arrays.stream(arguments)).toArray(String[]::new));
    }

    private int fake(String... arguments) {
        return train(() -> platform, arguments);
    }

    private int evaluate(String... arguments) {
        out.reset();
        err.reset();
        var stream = new PrintStream(out, true, StandardCharsets.UTF_8);
        return Evaluate.run(
                DevicePlatform::open, stream, new PrintStream(err, true, StandardCharsets.UTF_8), arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    private static List<Map<String, Object>> lines(Path report, String key) throws IOException {
        Stream.Builder<Map<String, Object>> lines = Stream.builder();
        for (String line : Files.readAllLines(report)) {
            lines.add(JSON.std.mapFrom(line));
        }
        return lines.build().filter(line -> line.containsKey(key)).toList();
    }

    private static List<Object> losses(Path report) throws IOException {
        return lines(report, "step").stream().map(line -> line.get("loss")).toList();
    }

    /** The file tells the optimizer; of schedule-free AdamW averages are evaluated, during the run and after it. */
    @ParameterizedTest
    @ValueSource(strings = {"schedule-free", "lion8bit", "muon", "sgd --ema=0.9"})
    void theFileTellsTheOptimizer(String options) throws IOException {
        Path fasta = folder.resolve("held-out.fasta");
        Files.writeString(fasta, ">a\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ\n");
        Path report = folder.resolve("r.jsonl");
        Path saved = folder.resolve("state");
        String optimizer = options.split(" ", -1)[0];
        String average = options.contains("--ema") ? "--ema=0.9" : "--seed=42";
        int status = train(
                "--steps=4",
                "--optimizer=" + optimizer,
                average,
                "--eval-fasta=" + fasta,
                "--report=" + report,
                "--save=" + saved);
        assertEquals(0, status, err());
        Path own = folder.resolve("evaluation.json");
        assertEquals(
                0,
                evaluate("--resume", saved.toString(), "--fasta", fasta.toString(), "--report", own.toString()),
                this::err);
        assertEquals(
                (double) lines(report, "evaluation").getFirst().get("loss"),
                (double) lines(own, "evaluation").getFirst().get("loss"),
                1e-6);
        assertEquals(2, train("--steps=6", "--resume=" + saved));
        assertTrue(
                err().contains("--resume: " + saved + ": expected a file of optimizer adamw, got " + optimizer
                        + "; give --optimizer " + optimizer),
                err());
        if (options.contains("--ema")) {
            assertEquals(2, train("--steps=6", "--optimizer=" + optimizer, "--resume=" + saved));
            assertTrue(err().contains("got one with decay 0.9; give --ema 0.9"), err());
        } else if (!optimizer.equals("schedule-free")) {
            assertEquals(2, train("--steps=6", "--optimizer=" + optimizer, "--ema=0.9", "--resume=" + saved));
            assertTrue(err().contains("got one without; leave out --ema"), err());
        }
        assertEquals(0, train("--steps=6", "--optimizer=" + optimizer, average, "--resume=" + saved), this::err);
    }

    @Test
    void trainingWritesEvaluationsAndTheCommandFindsTheSame() throws IOException {
        Path fasta = folder.resolve("held-out.fasta");
        Files.writeString(fasta, ">a\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ\n>b\nAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVV\n");
        Path report = folder.resolve("r.jsonl");
        Path saved = folder.resolve("state");
        Path board = folder.resolve("board");
        int status = train(
                "--steps=6",
                "--eval-fasta=" + fasta,
                "--eval-every=4",
                "--report=" + report,
                "--save=" + saved,
                "--tensorboard=" + board);
        assertEquals(0, status, err());
        assertTrue(
                out().contains("evaluating 2 held-out sequences of " + fasta + " every 4 steps and at the end"), out());
        assertTrue(err().contains("step 4/6  held-out data: loss "), err());
        assertTrue(out().contains("held-out data after 6 steps: loss "), out());
        List<Map<String, Object>> found = lines(report, "evaluation");
        assertEquals(
                List.of(4, 6),
                found.stream().map(line -> line.get("evaluation")).toList());
        Map<String, Object> head = lines(report, "heldOut").getFirst();
        assertEquals(fasta.toString(), head.get("heldOut"));
        assertEquals(4, head.get("evalEvery"));
        Map<String, Object> last = found.getLast();
        double loss = (double) last.get("loss");
        assertEquals(Math.exp(loss), (double) last.get("perplexity"), 1e-5);
        try (Stream<Path> files = Files.list(board)) {
            assertEquals(1, files.count());
        }

        Path plain = folder.resolve("plain.jsonl");
        assertEquals(0, train("--steps=6", "--report=" + plain), err());
        assertEquals(losses(plain), losses(report), "evaluation changes no loss");

        Path own = folder.resolve("evaluation.json");
        assertEquals(
                0,
                evaluate("--resume", saved.toString(), "--fasta", fasta.toString(), "--report", own.toString()),
                err());
        assertTrue(out().startsWith(fasta + " after 6 steps: loss "), out());
        Map<String, Object> alone = lines(own, "evaluation").getFirst();
        for (String key : List.of("evaluation", "loss", "accuracy", "labelled", "sequences")) {
            assertEquals(last.get(key), alone.get(key), key);
        }
        assertEquals(ReportReader.read(report).losses().steps(), 6, "a picture of the report leaves evaluations out");
    }

    @Test
    void aFractionIsHeldOutAndAResumedRunNeedsTheSame() throws IOException {
        Path saved = folder.resolve("state");
        Path report = folder.resolve("r.jsonl");
        assertEquals(0, train("--steps=2", "--eval-fraction=0.05", "--report=" + report, "--save=" + saved), err());
        Map<String, Object> found = lines(report, "evaluation").getLast();
        int sequences = (int) found.get("sequences");
        assertTrue(sequences >= 8 && sequences <= 35, "about a twentieth of 398 sequences, got " + sequences);
        Path own = folder.resolve("evaluation.json");
        assertEquals(
                0,
                evaluate("--resume", saved.toString(), "--eval-fraction", "0.05", "--report", own.toString()),
                err());
        assertEquals(found.get("loss"), lines(own, "evaluation").getFirst().get("loss"));
        assertEquals(2, evaluate("--resume", saved.toString(), "--eval-fraction", "1"));
        assertTrue(
                err().startsWith(
                                "evaluate: Invalid value for option '--eval-fraction': expected a number between 0 and 1, got 1"),
                err());
        assertEquals(2, train("--steps=3", "--eval-fraction=0.1", "--resume=" + saved));
        assertTrue(err().contains("without 0.05 of the sequences"), err());
        assertEquals(0, train("--steps=3", "--eval-fraction=0.05", "--resume=" + saved), err());
    }

    @Test
    void theRunEndsWhereTheLossNoLongerFalls() throws IOException {
        double[] losses = {3, 2.5, 2.45, 2.44, 2};
        int[] calls = {0};
        platform.model.evaluatedLoss = () -> losses[calls[0]++];
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKTAYIAKQRQ\n");
        Path saved = folder.resolve("state");
        assertEquals(
                0,
                fake(
                        "--steps=100",
                        "--eval-fasta=" + fasta,
                        "--eval-every=2",
                        "--early-stopping=2",
                        "--min-delta=0.1",
                        "--save=" + saved),
                err());
        assertEquals(4, calls[0]);
        assertEquals("save8", platform.model.calls.getLast());
        assertTrue(
                out().contains(
                                "stopped early, after 8 steps: the loss of held-out data was lowest after step 4, 2.5000, and"
                                        + " has not fallen in the last 2 evaluations"),
                out());
    }

    @Test
    void aLossThatIsNoNumberEndsTheRun() throws IOException {
        platform.model.evaluatedLoss = () -> Double.NaN;
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKTAYIAKQRQ\n");
        assertEquals(0, fake("--steps=9", "--eval-fasta=" + fasta, "--eval-every=3", "--early-stopping=5"), err());
        assertTrue(out().contains("stopped early, after 3 steps: the loss of held-out data is NaN"), out());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "--eval-fraction 0|Invalid value for option '--eval-fraction': expected a number between 0 and 1, got 0",
                "--eval-fraction 1|Invalid value for option '--eval-fraction': expected a number between 0 and 1, got 1",
                "--eval-fraction NaN|Invalid value for option '--eval-fraction': expected a number between 0 and 1, got NaN",
                "--eval-fraction 0.5 --eval-fasta x|--eval-fraction: expected this or --eval-fasta, got both: 0.5 and x",
                "--eval-every 3|--eval-every: expected --eval-fasta, --eval-fraction or --eval-text beside it, got none",
                "--eval-every -1 --eval-fraction 0.1|--eval-every: expected at least 0, got -1",
                "--early-stopping 3|--early-stopping: expected --eval-fasta, --eval-fraction or --eval-text beside it, got none",
                "--early-stopping 0 --eval-fraction 0.1|--early-stopping: expected at least 1, got 0",
                "--early-stopping 2 --eval-every 0 --eval-fraction 0.1|--early-stopping: expected --eval-every of at least 1 beside it, got 0",
                "--min-delta 0.1|--min-delta: expected --early-stopping beside it, got none",
                "--min-delta -1 --early-stopping 2 --eval-fraction 0.1|--min-delta: expected a finite number from 0 on, got -1.0",
                "--eval-fasta same --report same|--report: same is the file of --eval-fasta; name another one",
            })
    void wrongOptionsAreToldAtTheStart(String options, String problem) {
        assertEquals(2, fake(options.split(" ")));
        assertEquals("train: " + problem + " (train --help lists the options)" + System.lineSeparator(), err());
        assertEquals(List.of(), platform.model.calls);
    }

    @Test
    void dataThatCannotBeEvaluatedAreToldBeforeTheFirstStep() throws IOException {
        Path absent = folder.resolve("absent");
        assertEquals(1, fake("--eval-fasta", absent.toString()));
        assertEquals("train: " + absent + ": there is no such file" + System.lineSeparator(), err());
        Path empty = Files.createFile(folder.resolve("empty"));
        assertEquals(1, fake("--eval-fasta", empty.toString()));
        assertEquals(
                "train: " + empty + ":1: the file is empty; expected a '>' header line" + System.lineSeparator(),
                err());
        assertEquals(1, fake("--eval-fasta", "/dev/null"));
        assertEquals(
                "train: /dev/null: cannot be read twice, as evaluation does; save it as a file"
                        + System.lineSeparator(),
                err());
        Path one = Files.writeString(folder.resolve("one"), ">a\nMKTAYIAKQRQ\n");
        assertEquals(1, fake("--fasta", one.toString(), "--eval-fraction", "0.001"));
        assertEquals(
                "train: " + one + ": evaluation and training divide its sequences, and one of them gets none of 1; hold"
                        + " out another fraction, or give a file to evaluate" + System.lineSeparator(),
                err());
        assertEquals(1, fake("--fasta", one.toString(), "--eval-fraction", "0.999"));
        assertTrue(err().contains("gets none of 1"), err());
        assertEquals(List.of(), platform.model.calls);
    }

    /** As when the device has no memory for an evaluation. */
    @Test
    void anEvaluationThatFailsEndsTheRunWithItsState() throws IOException {
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKTAYIAKQRQ\n");
        Path saved = folder.resolve("state");
        platform.model.onEvaluation = () -> {
            throw new TrainingException("no memory is left");
        };
        assertEquals(1, fake("--steps=9", "--eval-fasta=" + fasta, "--eval-every=3", "--save=" + saved));
        assertTrue(err().contains("train: the state of step 3 was saved: " + saved), err());
        assertTrue(err().contains("train: no memory is left"), err());
        assertEquals("save3", platform.model.calls.getLast());
    }

    /** The evaluation was a checkpoint of the same state, where nothing was saved. */
    @Test
    void aStepThatFailsAfterAnEvaluationLeavesItsStateSaved() throws IOException {
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKTAYIAKQRQ\n");
        Path saved = folder.resolve("state");
        platform.model.onStep = () -> {
            if (platform.model.calls.contains("step3")) {
                throw new TrainingException("no memory is left");
            }
        };
        assertEquals(1, fake("--steps=9", "--eval-fasta=" + fasta, "--eval-every=3", "--save=" + saved));
        assertTrue(err().contains("train: the state of step 3 was saved: " + saved), err());
        assertEquals("save4", platform.model.calls.getLast(), "FakeModel counts the step that fails");
    }

    /** The state of the steps before is saved. */
    @Test
    void dataThatFailLaterEndTheRunWithItsState() throws IOException {
        Path fasta = Files.writeString(folder.resolve("x.fasta"), ">a\nMKTAYIAKQRQ\n");
        platform.model.onStep = () -> {
            try {
                Files.writeString(fasta, ">a\n?\n");
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        };
        Path saved = folder.resolve("state");
        assertEquals(1, fake("--steps=9", "--eval-fasta=" + fasta, "--eval-every=3", "--save=" + saved));
        assertTrue(err().contains(fasta + ":2: '?' at column 1"), err());
        assertEquals("save3", platform.model.calls.getLast());
    }

    @ParameterizedTest
    @ValueSource(strings = {"absent", "other"})
    void filesThatNoRunHasWrittenAreRefused(String name) throws IOException {
        Path file = folder.resolve(name);
        if (name.equals("other")) {
            Files.writeString(file, "no state");
        }
        assertEquals(1, evaluate("--resume", file.toString()));
        assertTrue(err().startsWith("evaluate: --resume: " + file + ": "), err());
        assertFalse(err().strip().contains("\n"), err());
        assertEquals(2, evaluate());
        assertTrue(
                err().startsWith(
                                "evaluate: --resume: expected a file that train --save has written, or --model with a folder of"
                                        + " Hugging Face, got neither"),
                err());
    }
}
