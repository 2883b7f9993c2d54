package dev.chagres.trainer;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.awt.image.BufferedImage;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.stream.Stream;
import javax.imageio.ImageIO;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --save} and {@code --resume} through the whole program. */
@Tag("L0")
class SaveAndResumeTest {
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;
    private static final int STEPS = 6;
    /** What a run computes in that says nothing of it. */
    private static final String RECIPE = REFERENCE ? "fp32" : "bf16";

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    private int run(String... arguments) {
        out.reset();
        err.reset();
        String[] common = {
            "--model=tiny",
            "--form=nvidia",
            "--context=64",
            "--tokens-per-step=512",
            "--decay=constant",
            "--warm-up-steps=2"
        };
        return Train.run(
                DevicePlatform::open,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                Stream.concat(
                                Arrays.stream(common).filter(option -> !isGiven(option, arguments)),
                                Arrays.stream(arguments))
                        .toArray(String[]::new));
    }

    private static boolean isGiven(String option, String... arguments) {
        String name = option.substring(0, option.indexOf('=') + 1);
        return Arrays.stream(arguments).anyMatch(argument -> argument.startsWith(name));
    }

    private String told() {
        return err.toString(StandardCharsets.UTF_8).strip();
    }

    /** Trains with the options, in words, and returns the steps of the report. */
    private List<Map<String, Object>> train(String options, String... more) throws IOException {
        DevicesNeeded.assumeFor(options.split(" "));
        Path report = folder.resolve("r.jsonl");
        List<String> arguments = new ArrayList<>(List.of(options.split(" ")));
        arguments.addAll(List.of(more));
        arguments.add("--report=" + report);
        assertEquals(0, run(arguments.toArray(String[]::new)), this::told);
        var steps = new ArrayList<Map<String, Object>>();
        for (String line : Files.readAllLines(report)) {
            steps.add(JSON.std.mapFrom(line));
        }
        return steps.subList(1, steps.size());
    }

    private String[] mixture(double weightOfFirst) {
        return new String[] {
            "--fasta",
            folder.resolve("a.fasta") + "=" + weightOfFirst,
            folder.resolve("more") + "=1",
            "--unknown=unk",
            "--letters=any",
            "--context=16",
            "--tokens-per-step=128"
        };
    }

    private static String[] with(String[] all, String... more) {
        return Stream.concat(Arrays.stream(all), Arrays.stream(more)).toArray(String[]::new);
    }

    @Test
    void aMixtureGoesOnWhereItWas() throws IOException {
        Path more = Files.createDirectory(folder.resolve("more"));
        Files.writeString(folder.resolve("a.fasta"), ">1\nMKTAYIAKQR\n>2\nMKLVJNGKT\n>3\nGATTACAGATTACA\n");
        Files.writeString(more.resolve("b.fasta"), ">4\nLAGVSERTID\n;none\n");
        Files.writeString(more.resolve("c.fa"), ">5\nPKQNFYMHWC\n>6\nAAAAAAAA\n");
        Path state = folder.resolve("state");
        List<Map<String, Object>> whole = train("--steps=4", mixture(0.5));
        Map<String, Object> unknown = whole.getLast();
        assertEquals(1, unknown.get("unknownLetters"), unknown::toString);
        assertEquals("unk", unknown.get("unknown"));
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("1 unknown letter of 1 sequence became <unk>: "));
        train("--steps=2 --save=" + state, mixture(0.5));
        List<Map<String, Object>> rest = train("--steps=4 --resume=" + state, mixture(0.5));
        for (int i = 0; i < 2; i++) {
            assertEquals(whole.get(2 + i).get("loss"), rest.get(i).get("loss"));
        }
        assertEquals(2, run(with(mixture(0.4), "--steps=4", "--resume=" + state)));
        assertTrue(told().contains("0.4 of ") && told().contains("got ") && told().contains("0.5 of "), this::told);
        Files.writeString(more.resolve("c.fa"), ">5\nPKQNFYMHWC\n>6\nAAAAAAAC\n");
        assertEquals(2, run(with(mixture(0.5), "--steps=4", "--resume=" + state)));
        assertTrue(told().contains("expected a run with --fasta"), this::told);
    }

    /** One command begins a run and goes on with it. */
    @Test
    void aRunGoesOnFromItsOwnFile() throws IOException {
        Path first = folder.resolve("first");
        Path file = folder.resolve("state");
        train("--steps=2", "--save=" + first);
        train("--steps=3 --resume-saved", "--resume=" + first, "--save=" + file);
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("resuming " + first + " after 2 steps"), this::told);
        List<Map<String, Object>> rest =
                train("--steps=" + STEPS + " --resume-saved", "--resume=" + first, "--save=" + file);
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("resuming " + file + " after 3 steps"), this::told);
        assertEquals(STEPS - 3, rest.size());
        train("--steps=2 --resume-saved", "--save=" + folder.resolve("new"));
        assertFalse(out.toString(StandardCharsets.UTF_8).contains("resuming"), this::told);
    }

    /** As launch does when a rank fails after the last step. */
    @Test
    void aRunThatIsCompleteIsLeftAsItIs() throws IOException {
        Path file = folder.resolve("state");
        Path report = folder.resolve("report.jsonl");
        String[] command = {"--steps=2", "--save=" + file, "--report=" + report, "--resume-saved"};
        assertEquals(0, run(command));
        byte[] state = Files.readAllBytes(file);
        byte[] lines = Files.readAllBytes(report);
        assertEquals(0, run(command));
        assertTrue(out.toString(StandardCharsets.UTF_8)
                .endsWith("nothing left to do: " + file + " has all 2 steps" + System.lineSeparator()));
        assertArrayEquals(state, Files.readAllBytes(file));
        assertArrayEquals(lines, Files.readAllBytes(report));
    }

    /** The folder of a run: its last checkpoints stay, and a run goes on from the last one or from another. */
    @Test
    void aRunGoesOnFromACheckpoint() throws IOException {
        Path run = folder.resolve("run");
        List<Map<String, Object>> whole = train("--steps=" + STEPS);
        train("--steps=4 --save-every=1 --keep-last=1 --keep-every=2", "--save=" + run + "/");
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("state: " + run), this::told);
        CheckpointFolder checkpoints = CheckpointFolder.of(run);
        assertEquals(List.of(2L, 4L), checkpoints.steps());
        List<Map<String, Object>> rest = train("--steps=" + STEPS + " --resume-saved", "--save=" + run + "/");
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("resuming " + run + " after 4 steps"), this::told);
        assertEquals(List.of(2L, 4L, (long) STEPS), checkpoints.steps());
        List<Map<String, Object>> more = train("--steps=" + STEPS, "--resume=" + checkpoints.step(2));
        if (REFERENCE) {
            for (int i = 2; i < STEPS; i++) {
                assertEquals(loss(whole.get(i)), loss(more.get(i - 2)));
            }
            assertEquals(loss(whole.get(4)), loss(rest.get(0)));
        }
    }

    @Test
    void optionsOfCheckpointsAreChecked() throws IOException {
        String file = "--save=" + folder.resolve("state");
        String run = "--save=" + folder.resolve("run") + "/";
        assertEquals(2, run("--keep-last=2", file));
        assertTrue(
                told().startsWith("train: --keep-last: expected --save DIR/ beside it, a folder whose name ends with a"
                        + " slash or that exists, got " + folder.resolve("state")),
                this::told);
        assertEquals(2, run("--keep-best=2", run));
        assertTrue(
                told().startsWith("train: --keep-best: expected --keep-last beside it, without which all checkpoints"
                        + " stay, got none"),
                this::told);
        assertEquals(2, run("--keep-every=-2", run));
        assertTrue(told().startsWith("train: --keep-every: expected at least 0"), this::told);
        Files.writeString(folder.resolve("run"), "in the way");
        assertEquals(1, run("--steps=2", run));
        assertEquals(
                "train: --save: " + folder.resolve("run") + ": expected a folder or a new name, got a file", told());
    }

    /** A state replaces an empty file and an older state, and no file of anybody else. */
    @Test
    void filesOfOthersAreNotReplaced() throws IOException {
        Path state = Files.createFile(folder.resolve("state"));
        train("--steps=2", "--save=" + state);
        byte[] older = Files.readAllBytes(state);
        train("--steps=3", "--save=" + state);
        assertNotEquals(-1, Arrays.mismatch(older, Files.readAllBytes(state)));
        Path notes = Files.writeString(folder.resolve("notes"), "of somebody else");
        Path weights = folder.resolve("weights");
        SafetensorsWriter.write(weights, List.of(), Map.of());
        Path theirs = folder.resolve("theirs");
        SafetensorsWriter.write(theirs, List.of(), Map.of("program", "theirs"));
        for (var got : Map.of(
                        notes, "one that cannot be read as such",
                        weights, "safetensors without its mark",
                        theirs, "safetensors of \"theirs\"")
                .entrySet()) {
            byte[] before = Files.readAllBytes(got.getKey());
            assertRefused(
                    2,
                    "train: --save: " + got.getKey()
                            + ": expected a new name, or a file that --save has written and a new one may replace, got "
                            + got.getValue() + "; name another one, or remove it (",
                    "--steps=2",
                    "--save=" + got.getKey());
            assertArrayEquals(before, Files.readAllBytes(got.getKey()));
        }
    }

    private static double loss(Map<String, Object> step) {
        return ((Number) step.get("loss")).doubleValue();
    }

    @ParameterizedTest
    @Tag("L2")
    @CsvSource({
        "--recipe=fp32 --accumulate=4, --recipe=fp32 --ranks=4 --strategy=zero3",
        "--recipe=fp16 --ranks=2 --strategy=zero3, --recipe=fp16 --accumulate=2",
        "--recipe=bf16 --graph=on, --recipe=bf16",
        "--recipe=fp32 --mesh=replicate=2;context=2, --recipe=fp32 --ranks=2",
        "--recipe=fp32 --accumulate=2, --recipe=fp32 --ranks=4 --strategy=cp --accumulate=2",
        "--recipe=fp8-delayed --ranks=2, --recipe=fp8-delayed --accumulate=2",
        "--recipe=fp32 --packing=best-fit --accumulate=2, --recipe=fp32 --packing=best-fit --ranks=2",
        "--recipe=fp32 --ranks=2 --strategy=zero1 --accumulate=2, --recipe=fp32 --ranks=4 --strategy=ddp",
        "--recipe=bf16 --ranks=2 --strategy=pp --accumulate=2, --recipe=bf16 --accumulate=2",
        "--recipe=fp8-delayed --mesh=replicate=2;pipeline=2, --recipe=fp8-delayed --ranks=2",
        "--recipe=fp32 --ranks=2 --strategy=tp --accumulate=2, --recipe=fp32 --ranks=2 --strategy=zero3",
        "--recipe=bf16 --mesh=replicate=2;tensor=2 --sequence-parallel, --recipe=bf16 --ranks=2",
        "--recipe=fp8-delayed --ranks=2 --strategy=tp, --recipe=fp8-delayed",
        "--recipe=fp32 --mesh=pipeline=2;tensor=2 --accumulate=2, --recipe=fp32 --mesh=replicate=2;tensor=2",
        "--recipe=bf16 --mesh=pipeline=2;replicate=2;shard=2 --strategy=zero2 --shard-optimizer=all-ranks, --recipe=bf16"
                + " --ranks=2 --accumulate=2",
        "--recipe=fp32 --mesh=shard=2;context=2, --recipe=fp32 --mesh=pipeline=2;context=2 --strategy=zero1 --accumulate=2",
        "--recipe=bf16 --mesh=replicate=2;shard=2 --shard-optimizer=all-ranks, --recipe=bf16 --ranks=2"
                + " --strategy=zero2 --accumulate=2",
        "--recipe=fp8-delayed --ranks=2 --strategy=zero3 --weight-gather=copy-engine, --recipe=fp8-delayed --ranks=2"
                + " --strategy=zero1 --weight-gather=copy-engine --gradient-reduction=copy-engine",
        "--recipe=bf16 --ranks=2 --strategy=ddp --reduce-dtype=bf16, --recipe=bf16 --ranks=2 --strategy=zero3 --reduce-dtype=fp16",
        "--recipe=bf16 --gradient-dtype=bf16 --accumulate=2, --recipe=bf16 --ranks=2 --strategy=ddp",
        "--recipe=fp32 --mesh=shard=2;tensor=2, --recipe=fp32 --mesh=pipeline=2;shard=2;tensor=2 --strategy=zero2",
        "--recipe=bf16 --mesh=pipeline=2;shard=2;tensor=2 --strategy=zero1, --recipe=bf16 --accumulate=2",
        "--recipe=fp32 --mesh=pipeline=2;shard=2 --strategy=zero3 --accumulate=2, --recipe=fp32 --ranks=2 --accumulate=2",
        "--recipe=bf16 --ranks=4 --strategy=hsdp --reshard=after-step, --recipe=bf16 --mesh=pipeline=2;replicate=2;shard=2"
                + " --strategy=hsdp"
    })
    void aRunGoesOnWhereAnotherEnded(String options, String later) throws IOException {
        String mine = options.replace(';', ',');
        Path half = folder.resolve("half");
        Path end = folder.resolve("end");
        List<Map<String, Object>> whole = train(mine, "--steps=" + STEPS, "--save=" + end);
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("state: " + end));
        train(mine, "--steps=3", "--save=" + half);
        Path resumed = folder.resolve("resumed");
        List<Map<String, Object>> rest = train(mine, "--steps=" + STEPS, "--resume=" + half, "--save=" + resumed);
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("resuming " + half + " after 3 steps and "));
        List<Map<String, Object>> others = train(later.replace(';', ','), "--steps=" + STEPS, "--resume=" + half);
        assertEquals(STEPS - 3, rest.size());
        for (int i = 0; i < rest.size(); i++) {
            Map<String, Object> expected = whole.get(3 + i);
            for (String key : new String[] {"step", "tokens", "paddedTokens", "learningRate"}) {
                assertEquals(expected.get(key), rest.get(i).get(key), key);
                assertEquals(expected.get(key), others.get(i).get(key), key);
            }
            double loss = loss(expected);
            assertEquals(loss, loss(rest.get(i)), REFERENCE ? 0 : 1e-2 * loss, "loss of step " + (4 + i));
            double tolerance = REFERENCE && mine.contains("fp32") ? 1e-5 : 1e-2;
            assertEquals(loss, loss(others.get(i)), tolerance * loss, "loss of step " + (4 + i) + " by others");
        }
        if (REFERENCE) {
            assertEquals(-1, Files.mismatch(end, resumed));
        }
    }

    /** As one that is drawn of the report, whose losses are rounded; the numbers of other steps would be other words. */
    @Test
    void thePictureOfARunThatWentOnBeginsWhereItDid() throws IOException {
        Path file = folder.resolve("state");
        Path drawn = folder.resolve("drawn.png");
        train("--recipe=fp32 --steps=2", "--save=" + file);
        train("--recipe=fp32 --steps=4", "--resume=" + file, "--plot=" + drawn);
        LossCurve losses = ReportReader.read(folder.resolve("r.jsonl")).losses();
        assertEquals(3, losses.number(0));
        var fromOne = new LossCurve();
        fromOne.add(1, losses.at(0));
        fromOne.add(2, losses.at(1));
        int same = differences(drawn, losses);
        int other = differences(drawn, fromOne);
        assertTrue(same <= 2 && other > 50, same + " and " + other + " pixels differ");
    }

    /** Returns how many pixels of a picture are quite another colour than in one of {@code losses}. */
    private int differences(Path picture, LossCurve losses) throws IOException {
        Path expected = folder.resolve("expected.png");
        try (var plot = new LossPlot("--plot", expected)) {
            plot.write("ESM-2 tiny, fp32, " + (REFERENCE ? "reference" : "cuda") + ", seed 42", losses);
        }
        BufferedImage mine = ImageIO.read(picture.toFile());
        BufferedImage other = ImageIO.read(expected.toFile());
        int count = 0;
        for (int y = 0; y < mine.getHeight(); y++) {
            for (int x = 0; x < mine.getWidth(); x++) {
                int green = (mine.getRGB(x, y) >> 8 & 0xff) - (other.getRGB(x, y) >> 8 & 0xff);
                count += Math.abs(green) > 100 ? 1 : 0;
            }
        }
        return count;
    }

    /** What was learned is still there, so such a run is not refused. */
    @Test
    void anotherScheduleIsTold() throws IOException {
        Path file = folder.resolve("state");
        train("--steps=2", "--save=" + file);
        String prefix = "train: --resume: " + file
                + " was saved with another schedule, so the learning rate is another one from here on: ";
        train("--steps=3 --warm-up-steps=1 --learning-rate=0.001", "--resume=" + file);
        assertEquals(
                prefix + "--learning-rate 0.001, was 0.004",
                told().lines().findFirst().orElseThrow());
        train("--steps=3 --warm-up-steps=3 --decay=cosine", "--resume=" + file);
        assertEquals(
                prefix + "--warm-up-steps 3, was 2, --decay cosine, was constant, --steps 3, was 2",
                told().lines().findFirst().orElseThrow());
        train("--steps=3 --warm-up-steps=3", "--resume=" + file);
        assertEquals(
                prefix + "--warm-up-steps 3, was 2", told().lines().findFirst().orElseThrow());
        for (String same : new String[] {"--steps=3", "--steps=3 --warm-up-steps=1"}) {
            train(same, "--resume=" + file);
            assertFalse(told().contains("schedule"), told());
        }
    }

    /** Whoever did not give an option is told where its value comes from. */
    @Test
    void defaultsOfAnotherScheduleAreTold() {
        Path file = folder.resolve("state");
        String[] saving = {"--steps=2", "--learning-rate=0.001", "--warm-up-steps=1", "--decay=cosine", "--save=" + file
        };
        assertEquals(0, run(saving), this::told);
        err.reset();
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                "--model=tiny",
                "--form=nvidia",
                "--context=64",
                "--tokens-per-step=512",
                "--steps=3",
                "--resume=" + file);
        assertEquals(0, status, this::told);
        assertEquals(
                "train: --resume: " + file
                        + " was saved with another schedule, so the learning rate is another one from here on:"
                        + " --learning-rate 0.004 (the default), was 0.001,"
                        + " --warm-up-steps 0 (the default, a tenth of --steps), was 1,"
                        + " --decay linear (the default), was cosine, --steps 3, was 2",
                told().lines().findFirst().orElseThrow());
    }

    /** Both keep the same scales, so a run may go on with faster sums; recipes with other types of weights are refused. */
    @Test
    void aRunGoesOnWithOtherSums() throws IOException {
        Path file = folder.resolve("state");
        train("--steps=2 --recipe=fp8-delayed", "--save=" + file);
        Path fast = folder.resolve("fast");
        List<Map<String, Object>> steps =
                train("--steps=3 --recipe=fp8-delayed-fast", "--resume=" + file, "--save=" + fast);
        assertEquals(3, steps.getFirst().get("step"));
        assertEquals(
                "train: --resume: " + file
                        + " was saved with --recipe fp8-delayed, so products sum otherwise from here on",
                told().lines().findFirst().orElseThrow());
        train("--steps=4 --recipe=fp8-delayed", "--resume=" + fast);
        train("--steps=4 --recipe=fp8-delayed-fast", "--resume=" + fast);
        assertFalse(told().contains("sum otherwise"), told());
        for (String other : new String[] {"fp16", "fp32"}) {
            assertRefused(
                    2,
                    ": expected a file of recipe " + other + ", got fp8-delayed-fast; give --recipe fp8-delayed-fast",
                    "--steps=4",
                    "--recipe=" + other,
                    "--resume=" + fast);
        }
    }

    /** Weights, moments and steps go on; scales and histories are of one recipe alone. */
    @ParameterizedTest
    @CsvSource({
        "fp8-delayed, --recipe=bf16, fp8-delayed",
        "fp8-delayed, --recipe=fp8-current, fp8-delayed",
        "fp8-delayed-fast, --recipe=fp8-block --graph=on, fp8-delayed-fast",
        "fp8-current, --recipe=bf16, none",
        "fp8-current, --recipe=fp8-delayed, --recipe fp8-delayed",
        "fp8-current, --recipe=fp8-block, none",
        "fp8-block, --recipe=bf16, none",
        "fp8-block, --recipe=fp8-delayed --graph=on, --recipe fp8-delayed",
        "fp8-block, --recipe=fp8-current, none",
        "bf16, --recipe=fp8-delayed, --recipe fp8-delayed",
        "bf16, --recipe=fp8-current, none",
        "bf16, --recipe=fp8-block --graph=on, none",
        "fp8-delayed, --recipe=fp8-current --ranks=2, fp8-delayed",
        "bf16, --recipe=fp8-delayed --ranks=2 --strategy=zero3, --recipe fp8-delayed",
        "fp8-delayed, --recipe=bf16 --ranks=2 --strategy=pp --accumulate=2, fp8-delayed",
        "fp8-delayed, --recipe=fp8-block --ranks=2 --strategy=tp, fp8-delayed",
        "fp8-current, --recipe=fp8-delayed --ranks=2 --strategy=pp --accumulate=2, --recipe fp8-delayed"
    })
    void aRunGoesOnWithAnotherRecipe(String recipe, String later, String whose) throws IOException {
        Path file = folder.resolve("state");
        Path next = folder.resolve("next");
        List<Map<String, Object>> before = train("--steps=4 --recipe=" + recipe, "--save=" + file);
        List<Map<String, Object>> steps = train(later + " --steps=6", "--resume=" + file, "--save=" + next);
        assertEquals(5, steps.getFirst().get("step"));
        double loss = loss(before.getLast());
        assertEquals(loss, loss(steps.getFirst()), 0.1 * loss, "the weights are those of the file");
        int ignored = countScales(file);
        int begun = countScales(next);
        String other = later.substring("--recipe=".length()).split(" ")[0];
        String told = "train: --resume: " + file + " was saved with --recipe " + recipe;
        told += whose.equals("none")
                ? ", which keeps no scales, as --recipe " + other + " keeps none: nothing is left out\n"
                : ": its " + ignored + " scales and histories are ignored, and the " + begun + " of --recipe " + other
                        + " begin anew; the report names them\n";
        assertTrue(told().contains(told), told());
        assertEquals(!whose.startsWith("--") && !whose.equals("none"), ignored > 0, "the file has scales");
        assertEquals(whose.startsWith("--"), begun > 0, "the run has scales");
        Map<String, Object> report =
                JSON.std.mapFrom(Files.readAllLines(folder.resolve("r.jsonl")).getFirst());
        assertEquals(whose.equals("none") ? null : ignored, sizeOf(report.get("ignored")));
        assertEquals(whose.equals("none") ? null : begun, sizeOf(report.get("begunAnew")));
        train(later + " --steps=7", "--resume=" + next);
        assertFalse(told().contains("was saved with --recipe"), told());
    }

    private static @Nullable Integer sizeOf(@Nullable Object list) {
        return list == null ? null : ((List<?>) list).size();
    }

    private static int countScales(Path path) {
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            return Math.toIntExact(file.entries().keySet().stream()
                    .filter(name -> name.endsWith(".scale") || name.endsWith(".amax_history"))
                    .count());
        }
    }

    /** Whoever says nothing of a recipe has forgotten it, rather than asked for another one. */
    @Test
    void aRecipeThatIsNotGivenIsNoOther() throws IOException {
        Path file = folder.resolve("state");
        train("--steps=2 --recipe=fp8-current", "--save=" + file);
        assertRefused(
                2,
                ": expected a file of recipe " + RECIPE + ", got fp8-current; give --recipe fp8-current",
                "--steps=4",
                "--resume=" + file);
    }

    /** What a run has saved is evaluated without its optimizer, recipe and data: the weights alone are read. */
    @ParameterizedTest
    @CsvSource({"bf16, BFLOAT16", "fp8-delayed, BFLOAT16", "fp16, FLOAT16", "fp32, FLOAT32"})
    void weightsOfARunAreLoadedAlone(String recipe, DType dtype) throws IOException {
        Path file = folder.resolve("run");
        train("--steps=2 --recipe=" + recipe, "--save=" + file);
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, Esm2Config.of(Esm2Size.TINY, 64), dtype, 1);
                SafetensorsFile saved = SafetensorsFile.open(file);
                Arena arena = Arena.ofConfined()) {
            Parameters parameters = model.parameters();
            Safetensors.load(file, parameters.weightState(), device.stream());
            for (Parameter parameter : parameters.all()) {
                SafetensorsEntry entry = saved.entry(parameter.name());
                byte[] expected = new byte[Math.toIntExact(entry.byteSize())];
                entry.copyTo(MemorySegment.ofArray(expected));
                MemorySegment loaded = arena.allocate(expected.length);
                parameter.weight().copyTo(device.stream(), loaded);
                device.stream().synchronize();
                assertArrayEquals(expected, loaded.toArray(JAVA_BYTE), parameter.name());
            }
        }
    }

    /** Other micro-batches take other sequences in a step; none comes twice, and none is left out. */
    @Test
    void theDataGoesOnAtTheNextSequence() throws IOException {
        Path one = folder.resolve("one");
        Path other = folder.resolve("other");
        train("--steps=3", "--save=" + one);
        train("--steps=4 --tokens-per-step=1024 --accumulate=2", "--resume=" + one, "--save=" + other);
        try (SafetensorsFile before = SafetensorsFile.open(one);
                SafetensorsFile after = SafetensorsFile.open(other)) {
            long first = before.entry("data.sequences").bytes().get(JAVA_LONG_UNALIGNED, 0);
            long second = after.entry("data.sequences").bytes().get(JAVA_LONG_UNALIGNED, 0);
            assertTrue(first > 3 * 7 && second > first + 10, first + " and " + second);
            assertEquals("42", after.metadata().get("seed"));
        }
    }

    private void assertRefused(int status, String text, String... options) {
        assertEquals(status, run(options), this::told);
        assertTrue(told().contains(text), told());
    }

    /** Writes {@code file} again as other programs would, with one number of the host, or with all of one tensor's bytes, set to {@code value}. */
    private Path with(Path file, String name, long value) {
        return rewritten(file, folder.resolve("changed"), (own, bytes) -> {
            for (int i = 0; own.equals(name) && i < bytes.byteSize() / Long.BYTES; i++) {
                bytes.setAtIndex(JAVA_LONG_UNALIGNED, i, value);
            }
            return own;
        });
    }

    /** Writes {@code file} again without checksums. */
    private static Path rewritten(Path file, Path other, BiFunction<String, MemorySegment, String> change) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            List<TensorSource> sources = new ArrayList<>();
            opened.entries().forEach((name, entry) -> {
                MemorySegment bytes = MemorySegment.ofArray(entry.bytes().toArray(JAVA_BYTE));
                String changed = change.apply(name, bytes);
                sources.add(TensorSource.of(new TensorSpec(changed, entry.dtype(), entry.shape()), bytes));
            });
            SafetensorsWriter.write(other, sources, opened.metadata());
        }
        return other;
    }

    @Test
    void numbersThatCannotBeAreRefused() throws IOException {
        Path file = folder.resolve("state");
        train("--steps=2", "--save=" + file);
        assertRefused(
                1,
                ": expected data.sequences of at most 4294967294, which 2 steps can take from the data, got "
                        + (1L << 62),
                "--steps=4",
                "--resume=" + with(file, "data.sequences", 1L << 62));
        assertRefused(
                1,
                ": expected optimizer.step to make 2, the number of step, got 7",
                "--steps=4",
                "--resume=" + with(file, "optimizer.step", 7));
        assertRefused(
                1,
                ": expected optimizer.step to make 1, the number of step, got 2",
                "--steps=4",
                "--resume=" + with(file, "step", 1));
        assertRefused(
                1,
                "step 3: the loss is NaN before anything was learned here, so the weights of the file of --resume are"
                        + " not finite; resume an older one",
                "--steps=4",
                "--resume=" + with(file, "embedding.weight", -1));
    }

    @Test
    void whatCannotBeResumedIsToldBeforeAnythingIsComputed() throws IOException {
        Path file = folder.resolve("state");
        train("--steps=2", "--save=" + file);
        byte[] before = Files.readAllBytes(file);
        assertRefused(
                2,
                "train: --steps: expected more than the 2 that " + file
                        + " has made already, for steps count in all, got 2",
                "--steps=2",
                "--resume=" + file);
        assertRefused(
                2,
                "train: --resume: " + file + ": expected a file of seed 7, got 42; give --seed 42",
                "--steps=3",
                "--seed=7",
                "--resume=" + file);
        assertRefused(
                2,
                "train: --resume: " + file + ": expected a file of model 8M, got tiny; give --model tiny",
                "--steps=3",
                "--model=8M",
                "--resume=" + file);
        assertRefused(
                2,
                "train: --resume: " + file + ": expected a file of recipe fp16, got " + RECIPE + "; give --recipe "
                        + RECIPE + " (train --help lists the options)",
                "--steps=3",
                "--recipe=fp16",
                "--resume=" + file);
        Path none = folder.resolve("none");
        assertRefused(
                1, "train: --resume: " + none + ": expected a safetensors file, got no such file", "--resume=" + none);
        Path damaged = Files.write(folder.resolve("damaged"), Arrays.copyOf(before, before.length - 5));
        assertRefused(1, "train: --resume: " + damaged + ": ", "--steps=3", "--resume=" + damaged);
        Path renamed = rewritten(
                file, folder.resolve("renamed"), (name, bytes) -> name.replaceFirst("^embedding\\.", "elsewhere."));
        assertRefused(
                1,
                "type or shape; nothing was loaded; the first is missing: \"embedding.weight\" ",
                "--steps=3",
                "--resume=" + renamed);
        assertTrue(told().matches("train: .*: [1-9]\\d* missing, [1-9]\\d* unexpected, 0 of another .*\\]"), told());
        assertRefused(
                1,
                "train: --resume: " + folder.resolve("changed")
                        + ": tensor \"embedding.weight.exp_avg_sq\": expected numbers from 0 on, got NaN at element 0",
                "--steps=3",
                "--resume=" + with(file, "embedding.weight.exp_avg_sq", -1));
        assertRefused(
                1,
                "train: --save: " + none.resolve("x") + ": could not be written: no such folder: " + none,
                "--save=" + none.resolve("x"));
        assertRefused(1, "train: --save: /proc/x: could not be written: ", "--save=/proc/x");
        assertRefused(2, "--save-every: expected --save beside it, which is written, got none", "--save-every=2");
        assertRefused(
                2,
                "--resume-saved: expected --save beside it, whose file the run goes on from, got none",
                "--resume-saved");
        assertRefused(
                2,
                "--save: " + file + " is the file of --report; name another one",
                "--save=" + file,
                "--report=" + file);
        Path link = Files.createSymbolicLink(folder.resolve("link"), none);
        assertRefused(
                1,
                "train: --save: " + link + ": could not be written: no such file or folder: " + link,
                "--save=" + link);
        assertArrayEquals(before, Files.readAllBytes(file));
        assertFalse(Files.exists(none));
    }
}
