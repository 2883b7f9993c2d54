package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.io.SafetensorsFile;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What a run leaves whose data turn out to be bad, or other data, once it has learned. */
@Tag("L0")
@Tag("L2")
@Timeout(240)
class EndOfRunTest {
    private static final int GOOD = 90;
    private static final int STEPS = 14;
    private static final int WINDOW = 2_000;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    /** A device that reads its data in windows of some twenty sequences, as files of millions are read. */
    private record SmallWindows(Platform whole, int windowResidues) implements Platform {

        @Override
        public String provider() {
            return whole.provider();
        }

        @Override
        public boolean isGpu() {
            return whole.isGpu();
        }

        @Override
        public int devices() {
            return whole.devices();
        }

        @Override
        public int multiprocessors() {
            return whole.multiprocessors();
        }

        @Override
        public String device() {
            return whole.device();
        }

        @Override
        public Map<String, String> libraries() {
            return whole.libraries();
        }

        @Override
        public Training open(TrainingPlan plan) {
            return whole.open(plan);
        }

        @Override
        public Training open(TrainingPlan plan, BooleanSupplier stopped) {
            return whole.open(plan, stopped);
        }

        @Override
        public void close() {
            whole.close();
        }
    }

    private Path fasta(String name, String last) throws IOException {
        Random random = new Random(5);
        var text = new StringBuilder();
        for (int i = 0; i < GOOD; i++) {
            text.append(">s").append(i).append('\n');
            random.ints(100, 0, 20).forEach(r -> text.append("LAGVSERTIDPKQNFYMHWC".charAt(r)));
            text.append('\n');
        }
        return Files.writeString(folder.resolve(name), text + ">last\nMK" + last + "\n");
    }

    private int train(String... more) {
        out.reset();
        err.reset();
        List<String> arguments = new ArrayList<>(List.of(
                "--model=tiny",
                "--recipe=fp32",
                "--tokens-per-step=512",
                "--decay=constant",
                "--warm-up-steps=2",
                "--report=" + folder.resolve("r.jsonl")));
        arguments.addAll(List.of(more));
        if (!arguments.contains("--context=32")) {
            arguments.add("--context=64");
        }
        return Train.run(
                () -> new SmallWindows(DevicePlatform.open(), WINDOW),
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments.toArray(String[]::new));
    }

    private List<String> told() {
        return err.toString(StandardCharsets.UTF_8).strip().lines().toList();
    }

    private List<Object> losses(String report) throws IOException {
        var losses = new ArrayList<Object>();
        for (String line : Files.readAllLines(folder.resolve(report))) {
            losses.add(JSON.std.mapFrom(line).get("loss"));
        }
        return losses.subList(1, losses.size());
    }

    /** The record behind many windows is mended, and the run goes on as if it had always been good. */
    @ParameterizedTest
    @ValueSource(strings = {"--ranks=1", "--ranks=2"})
    void badDataLateInARunLeaveItsState(String ranks) throws IOException {
        DevicesNeeded.assumeFor(ranks);
        Path bad = fasta("bad.fasta", "J");
        Path state = folder.resolve("state");
        assertEquals(1, train(ranks, "--fasta=" + bad, "--steps=" + STEPS, "--save=" + state));
        List<Object> before = losses("r.jsonl.part");
        int made = before.size();
        assertTrue(made > 3 && made < STEPS, () -> String.join("\n", told()));
        assertEquals("train: the state of step " + made + " was saved: " + state, told().get(told().size() - 2));
        assertEquals(
                "train: " + bad + ":" + (2 * GOOD + 2) + ": 'J' at column 3: it stands for no residue in ESM-2's"
                        + " vocabulary (the " + made + " steps before are in " + folder.resolve("r.jsonl.part") + ")",
                told().getLast());

        Path mended = fasta("mended.fasta", "V");
        assertEquals(0, train(ranks, "--fasta=" + mended, "--steps=" + STEPS), () -> String.join("\n", told()));
        List<Object> whole = losses("r.jsonl");
        assertEquals(whole.subList(0, made), before);
        String[] going = {ranks, "--fasta=" + mended, "--steps=" + STEPS, "--resume=" + state};
        assertEquals(2, train(going));
        assertEquals(
                0,
                train(ranks, going[1], going[2], going[3], "--resume-with-other-data"),
                () -> String.join("\n", told()));
        assertEquals(whole.subList(made, STEPS), losses("r.jsonl"));
    }

    /** A rank, which finds what is bad the earlier the higher its number is. */
    static final class OneRank {
        public static void main(String[] arguments) {
            int window = WINDOW / 2 * (1 + Integer.parseInt(System.getenv("CHAGRES_RANK")));
            System.exit(Train.run(
                    () -> new SmallWindows(DevicePlatform.open(), window),
                    new StandardOutput(System.out, StandardCharsets.UTF_8),
                    System.err,
                    arguments));
        }
    }

    /** Rank 1 fails first. Rank 0 saves with it, though its own data are good so far. */
    @Test
    void ranksThatAreProcessesSaveTogetherWhenOneHasBadData() throws Exception {
        DevicesNeeded.assume(2);
        Path bad = fasta("bad.fasta", "J");
        Path state = folder.resolve("state");
        Path report = folder.resolve("r.jsonl");
        List<String> arguments = List.of(
                "--model=tiny",
                "--recipe=fp32",
                "--context=64",
                "--tokens-per-step=512",
                "--steps=" + STEPS,
                "--fasta=" + bad,
                "--report=" + report,
                "--save=" + state);
        try (var ranks = new RankProcesses(
                2,
                0,
                OneRank.class,
                arguments,
                NumaBinding.ofHost(NumaBinding.Mode.OFF, 2),
                new PrintStream(err, true, StandardCharsets.UTF_8))) {
            assertEquals(1, ranks.await());
        }
        String text = String.join("\n", told());
        assertTrue(text.contains("[rank 1] train: " + bad + ":" + (2 * GOOD + 2) + ": 'J' at column 3"), text);
        int made = losses("r.jsonl").size();
        assertTrue(made > 3 && made < STEPS, text);
        try (SafetensorsFile saved = SafetensorsFile.open(state)) {
            assertEquals(made, saved.entry("step").bytes().get(ValueLayout.JAVA_LONG_UNALIGNED, 0));
        }
    }

    @Test
    void otherDataAndOtherContextsAreRefusedUnlessTheyAreAskedFor() throws IOException {
        Path mine = fasta("mine.fasta", "V");
        Path other = fasta("other.fasta", "VV");
        Path state = folder.resolve("state");
        String resume = "--resume=" + state;
        assertEquals(0, train("--fasta=" + mine, "--steps=2", "--save=" + state), () -> String.join("\n", told()));
        assertEquals(2, train("--fasta=" + other, "--steps=3", resume));
        String content = ", [0-9]+ bytes of checksum [0-9a-f]{8}";
        String text = told().getLast();
        assertTrue(
                text.matches("train: --resume: .*state: expected a run with --fasta .*other.fasta" + content
                        + ", got .*mine.fasta" + content
                        + "; give that, or go on with other data: --resume-with-other-data .*"),
                text);
        assertEquals(2, train("--fasta=" + mine, "--steps=3", resume, "--context=32"));
        text = told().getLast();
        assertTrue(
                text.startsWith(
                        "train: --resume: " + state + ": expected a run with --context 32, got 64; give that, or"),
                text);
        String[][] taken = {
            {"--fasta=" + mine, "--steps=3", resume},
            {"--fasta=" + Files.copy(mine, folder.resolve("copy.fasta")), "--steps=3", resume},
            {"--fasta=" + other, "--steps=3", resume, "--resume-with-other-data"},
            {"--fasta=" + mine, "--steps=3", resume, "--resume-with-other-data", "--context=32"}
        };
        for (String[] options : taken) {
            assertEquals(0, train(options), () -> String.join("\n", told()));
            assertEquals(1, losses("r.jsonl").size());
        }
        assertEquals(2, train("--resume-with-other-data"));
        text = told().getLast();
        assertTrue(
                text.startsWith(
                        "train: --resume-with-other-data: expected --resume or --resume-saved beside it, got none"),
                text);
    }

    /** A name that cannot be is told before the first step rather than after the last one. */
    @Test
    void aPlaceThatTakesNoStateIsToldBeforeTheFirstStep() {
        Path tooLong = folder.resolve("x".repeat(256));
        assertEquals(1, train("--save=" + tooLong));
        assertEquals(
                "train: --save: " + tooLong + ": could not be written: File name too long: " + tooLong,
                told().getLast());
        assertTrue(!out.toString(StandardCharsets.UTF_8).contains("getting ready"));
    }
}
