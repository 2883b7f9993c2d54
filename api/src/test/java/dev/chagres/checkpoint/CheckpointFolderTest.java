package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Shape;
import dev.chagres.internal.BlockSums;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Checkpoints in the folder of a run: what is published is whole, and what is damaged is noticed. */
@Tag("L0")
class CheckpointFolderTest {
    private static final long SEED = 7;
    private static final int FLIPS = 500;

    @TempDir
    private Path folder;

    /** Two tensors of a weight, one of which it does not fill, a constant, and a file. */
    private static final ModelFiles MODEL = new ModelFiles() {
        @Override
        public List<Named> tensors(String parameter) {
            return parameter.equals("layer.weight")
                    ? List.of(new Named("theirs.upper", Shape.of(6, 16)), new Named("theirs.lower", Shape.of(5, 16)))
                    : List.of(new Named("theirs." + parameter, Shape.of(16)));
        }

        @Override
        public List<TensorSource> constants() {
            return List.of(TensorSource.of(
                    new TensorSpec("theirs.constant", DType.FLOAT32, Shape.of(2)),
                    MemorySegment.ofArray(new float[] {1, 2})));
        }

        @Override
        public Map<String, byte[]> files() {
            return Map.of("config.json", "{\"model_type\": \"theirs\"}".getBytes(StandardCharsets.UTF_8));
        }
    };

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    /** A number of any sign keeps its bits, in a file and in a folder; one that is no number is refused, and nothing is loaded. */
    @Test
    void keepsDoubles(@TempDir Path two) {
        double[] best = {-0.0};
        State state = new State.Builder()
                .real("best", () -> best[0], value -> best[0] = value)
                .number("seen", () -> 3, _ -> {}, 9)
                .build();
        Path file = two.resolve("a.safetensors");
        try (Device device = Device.open()) {
            for (double value : new double[] {-0.0, -1.0 / 3, Double.MIN_VALUE, Double.NEGATIVE_INFINITY, 1e300}) {
                best[0] = value;
                assertEquals("best " + value + "\nseen 3\n", state.toString());
                Safetensors.save(file, state, device.stream(), Map.of());
                best[0] = 7;
                Safetensors.load(file, state, device.stream());
                assertEquals(value, best[0]);
            }
            best[0] = Double.NaN;
            Safetensors.save(file, state, device.stream(), Map.of());
            best[0] = 7;
            SafetensorsException refused =
                    assertThrows(SafetensorsException.class, () -> Safetensors.load(file, state, device.stream()));
            assertTrue(
                    refused.getMessage().contains("expected the bits of a double that is a number, got 92"),
                    refused.getMessage());
            assertEquals(7, best[0]);
        }
        best[0] = -2.5;
        withState(SEED, run -> run.with(state).save(CheckpointFolder.of(two), 1, Map.of()));
        best[0] = 7;
        withState(SEED, run -> run.with(state).load(two));
        assertEquals(-2.5, best[0]);
    }

    private static void withState(long seed, Consumer<RunState> body) {
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan(), DType.FLOAT32, seed);
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            body.accept(RunState.of(parameters).optimizer(optimizer));
        }
    }

    private static void withRanks(int ranks, long seed, Consumer<RunState> body) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).each(rank -> {
            try (Strategy strategy =
                            FullySharded.allocate(plan(), DType.FLOAT32, seed, ZeroStage.THREE, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                body.accept(RunState.of(strategy).optimizer(optimizer));
            }
        });
    }

    private static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    @Test
    void example() {
        Path run = folder.resolve("run");
        withState(SEED, state -> {
            // @start region="folder"
            try (CheckpointFolder checkpoints = CheckpointFolder.of(run).with(new Retention(2, 1000, 0))) {
                checkpoints.claim(); // no other program saves here
                state.save(checkpoints, 100, Map.of("purpose", "an example"));
                state.save(checkpoints, 200, Map.of());
            }
            state.load(run); // the last one; or run.resolve("step-00000100")
            // @end
            assertEquals(List.of(100L, 200L), CheckpointFolder.of(run).steps());
        });
    }

    @Test
    void aFolderHasTheModelsFilesAndTheRest() throws IOException {
        withState(SEED, state -> state.with(MODEL).save(CheckpointFolder.of(folder), 12, Map.of("a", "text")));
        assertEquals(List.of("latest", "step-00000012"), names(folder));
        assertEquals("step-00000012\n", Files.readString(folder.resolve("latest")));
        Path step = CheckpointFolder.of(folder).step(12);
        assertEquals(
                List.of("chagres.json", "config.json", "model.safetensors", "state-00001-of-00001.safetensors"),
                names(step));
        try (SafetensorsFile model = SafetensorsFile.open(step.resolve("model.safetensors"));
                SafetensorsFile whole = SafetensorsFile.open(folder)) {
            assertEquals(Map.of("format", "pt"), model.metadata());
            assertEquals(
                    List.of("theirs.constant", "theirs.layer.bias", "theirs.lower", "theirs.upper"),
                    model.entries().keySet().stream().sorted().toList());
            assertEquals(Map.of("a", "text"), whole.metadata());
            byte[] weight = new byte[16 * 16 * 4];
            byte[] upper = new byte[6 * 16 * 4];
            whole.entry("layer.weight").copyTo(MemorySegment.ofArray(weight));
            model.entry("theirs.upper").copyTo(MemorySegment.ofArray(upper));
            assertArrayEquals(upper, Arrays.copyOf(weight, upper.length));
            assertEquals(-1, whole.entry("layer.weight").bytes().mismatch(MemorySegment.ofArray(weight)));
        }
        Path again = folder.resolve("again");
        withState(SEED + 1, state -> {
            state.load(folder);
            state.with(MODEL).save(CheckpointFolder.of(again), 12, Map.of("a", "text"));
        });
        assertSame(step, CheckpointFolder.of(again).step(12));
        Path three = folder.resolve("three");
        withRanks(3, SEED + 2, state -> {
            state.load(step);
            state.with(MODEL).save(CheckpointFolder.of(three), 12, Map.of("a", "text"));
        });
        assertSame(step, CheckpointFolder.of(three).step(12));
    }

    private static void assertSame(Path expected, Path actual) throws IOException {
        assertEquals(names(expected), names(actual));
        for (String name : names(expected)) {
            assertEquals(-1, Files.mismatch(expected.resolve(name), actual.resolve(name)), name);
        }
    }

    /** Of every file, the manifest included: each flip is an error that names the file, and the tensor where there is one. */
    @Test
    void everyFlippedBitIsNoticed() throws IOException {
        withState(SEED, state -> state.with(MODEL).save(CheckpointFolder.of(folder), 1, Map.of()));
        Path step = CheckpointFolder.of(folder).step(1);
        List<Path> files = new ArrayList<>();
        for (String name : names(step)) {
            files.add(step.resolve(name));
        }
        Random random = new Random(SEED);
        withState(SEED, state -> {
            for (int i = 0; i < FLIPS; i++) {
                flip(state, files.get(random.nextInt(files.size())), random);
            }
            state.load(step);
        });
        Path state = step.resolve("state-00001-of-00001.safetensors");
        byte[] bytes = Files.readAllBytes(state);
        bytes[bytes.length - 1] ^= 1;
        Files.write(state, bytes);
        withRanks(3, SEED, ranks -> {
            var e = assertThrows(SafetensorsException.class, () -> ranks.load(folder));
            assertEquals(state, e.file());
            assertTrue(e.tensor().isPresent());
        });
    }

    private static void flip(RunState state, Path file, Random random) {
        try {
            byte[] good = Files.readAllBytes(file);
            int head = file.toString().endsWith(".safetensors")
                    ? 8 + (good[0] & 255) + ((good[1] & 255) << 8)
                    : good.length;
            int at = random.nextInt(good.length);
            byte[] flipped = good.clone();
            flipped[at] ^= (byte) (1 << random.nextInt(8));
            Files.write(file, flipped);
            String place = "seed " + SEED + ", byte " + at + " of " + file;
            var e = assertThrows(SafetensorsException.class, () -> state.load(file.getParent()), place);
            assertEquals(file, e.file(), place);
            assertEquals(at >= head, e.tensor().isPresent(), () -> place + ": " + e.getMessage());
            Files.write(file, good);
        } catch (IOException failure) {
            throw new AssertionError(failure);
        }
    }

    private static void save(CheckpointFolder checkpoints, long step, Map<String, String> texts) {
        withState(SEED, state -> state.save(checkpoints, step, texts));
    }

    @Test
    void whatIsNotKeptIsRemovedButNotWhatIsRead() throws IOException {
        try (CheckpointFolder checkpoints = CheckpointFolder.of(folder).with(new Retention(2, 10, 1))) {
            withState(SEED, state -> {
                for (int step = 1; step <= 7; step++) {
                    state.save(checkpoints, step, Map.of(Retention.METRIC, step == 3 ? "0.5" : "NaN"));
                }
                state.save(checkpoints, 10, Map.of(Retention.METRIC, "no number"));
                try (SafetensorsFile read = SafetensorsFile.open(folder)) {
                    assertTrue(SafetensorsFile.isRead(read.path()));
                    for (int step = 11; step <= 14; step++) {
                        state.save(checkpoints, step, Map.of(Retention.METRIC, "0.75"));
                    }
                }
            });
            assertEquals(List.of(3L, 10L, 13L, 14L), checkpoints.steps());
        }
        try (CheckpointFolder checkpoints = CheckpointFolder.of(folder).with(new Retention(1, 0, 0))) {
            try (SafetensorsFile read = SafetensorsFile.open(checkpoints.step(3))) {
                save(checkpoints, 15, Map.of());
                assertEquals(List.of(3L, 15L), checkpoints.steps());
                read.entry("layer.weight").verify();
            }
            save(checkpoints, 15, Map.of("again", "replaced"));
            assertEquals(List.of(15L), checkpoints.steps());
        }
        try (SafetensorsFile last = SafetensorsFile.open(folder)) {
            assertEquals(Map.of("again", "replaced"), last.metadata());
        }
        assertEquals(List.of("latest", "step-00000015"), names(folder));
    }

    @Test
    void whatKilledProgramsLeftIsRemoved() throws IOException {
        CheckpointFolder checkpoints = CheckpointFolder.of(folder);
        save(checkpoints, 1, Map.of());
        Path left = Files.createDirectory(folder.resolve(".step-00000002.00ff.part"));
        Files.writeString(left.resolve("state-00001-of-00001.safetensors"), "half");
        Path replaced = folder.resolve(".step-00000001.00ff.replaced");
        Files.move(checkpoints.step(1), replaced);
        Files.writeString(folder.resolve("mine"), "another file");
        Files.createDirectory(folder.resolve("step-00000009")); // without a manifest
        assertEquals(List.of(), checkpoints.steps());
        checkpoints.claim();
        checkpoints.close();
        assertEquals(List.of(1L), checkpoints.steps());
        assertEquals(List.of("latest", "mine", "step-00000001", "step-00000009"), names(folder));
        Files.delete(folder.resolve("latest"));
        withState(SEED, state -> state.load(folder));
    }

    /** A run that went on from step 3 of 7 has published step 5 last. */
    @Test
    void theLastOneNeedNotBeTheHighest() throws IOException {
        CheckpointFolder checkpoints = CheckpointFolder.of(folder.resolve("run"));
        assertEquals(Optional.empty(), checkpoints.last());
        save(checkpoints, 7, Map.of());
        save(checkpoints, 5, Map.of());
        assertEquals(Optional.of(checkpoints.step(5)), checkpoints.last());
        Files.delete(checkpoints.path().resolve("latest"));
        assertEquals(Optional.of(checkpoints.step(7)), checkpoints.last());
    }

    private static String refusal(Runnable call) {
        return assertThrows(SafetensorsException.class, call::run).getMessage();
    }

    @Test
    void refusalsSayWhatIsThere() throws IOException {
        Path file = Files.writeString(folder.resolve("file"), "in the way");
        assertEquals(
                file + ": expected a folder or a new name, got a file",
                refusal(() -> CheckpointFolder.of(file).claim()));
        assertTrue(refusal(() ->
                        CheckpointFolder.of(folder.resolve("n".repeat(300))).claim())
                .contains("could not be written: "));
        assertTrue(refusal(() -> CheckpointFolder.of(Path.of("/proc/none")).claim())
                .startsWith("/proc/none: could not be written: "));
        Path run = folder.resolve("run");
        try (CheckpointFolder first = CheckpointFolder.of(run)) {
            first.claim();
            first.claim();
            assertTrue(refusal(() -> CheckpointFolder.of(run).claim()).contains("this process is writing it"));
            assertTrue(
                    refusal(() -> save(CheckpointFolder.of(run), 1, Map.of())).contains("is writing it"));
            save(first, 1, Map.of());
        }
        save(CheckpointFolder.of(run), 2, Map.of());
        Path empty = Files.createDirectory(folder.resolve("empty"));
        withState(
                SEED,
                state -> assertEquals(
                        empty
                                + ": expected a safetensors file, or the folder of a checkpoint, which has chagres.json, got a folder"
                                + " without it",
                        refusal(() -> state.load(empty))));
        Path step = CheckpointFolder.of(run).step(2);
        State more = new State.Builder()
                .number("data.sequences", () -> 1, value -> {}, 10)
                .build();
        withState(SEED, state -> {
            assertTrue(refusal(() -> state.with(more).load(run))
                    .contains("1 missing, 0 unexpected, 0 of another type or shape; nothing was loaded"));
            state.with(more).save(CheckpointFolder.of(run), 3, Map.of());
            assertTrue(refusal(() -> state.load(run)).contains("0 missing, 1 unexpected"));
            var e = assertThrows(
                    IllegalArgumentException.class, () -> state.save(CheckpointFolder.of(run), -1, Map.of()));
            assertEquals("step: expected 0 or more, got -1", e.getMessage());
        });
        Path tensors = step.resolve("state-00001-of-00001.safetensors");
        byte[] bytes = Files.readAllBytes(tensors);
        Files.write(tensors, Arrays.copyOf(bytes, bytes.length - 1));
        withState(
                SEED,
                state -> assertEquals(
                        tensors + ": expected " + bytes.length + " bytes, got " + (bytes.length - 1)
                                + ": damaged since it was written",
                        refusal(() -> state.load(step))));
        Files.delete(tensors);
        withState(
                SEED,
                state -> assertEquals(
                        tensors + ": expected a file that chagres.json names, got none",
                        refusal(() -> state.load(step))));
        assertFalse(Files.exists(run.resolve(".chagres.part")));
    }

    /** A manifest whose checksum fits, but not its fields: each is named. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "\"step\" : 1 | \"step\" : \"1\" | step: expected a number from 0 to 9223372036854775807, got \"1\"",
                "\"step\" : 1 | \"step\" : 1.5 | step: expected a number from 0 to 9223372036854775807, got 1.5",
                "\"step\" : 1 | \"step\" : 98765432109876543210 | step: expected a number from 0 to 9223372036854775807, got"
                        + " 98765432109876543210",
                "\"step\" : 1 | \"steps\" : 1 | step: expected a number from 0 to 9223372036854775807, got none",
                "\"first\" : 0 | \"first\" : 98765432109876543210 | tensors.layer.weight.ranges.0.first: expected a number from 0"
                        + " to 9223372036854775807, got 98765432109876543210",
                "\"first\" : 0 | \"first\" : 9223372036854775807 | tensors.layer.weight.ranges.0.first: expected 0, behind the ranges"
                        + " before, got 9223372036854775807",
                "\"position\" : | \"position\" : -1, \"p\" : | tensors.layer.weight.ranges.0.position: expected a number from 0 to"
                        + " 9223372036854775807, got -1",
                "\"position\" : | \"position\" : 99999999, \"p\" : | tensors.layer.weight.ranges.0: expected bytes within a file of \"files\", a"
                        + " checksum for each block, got other fields",
                "\"shape\" : [ | \"shape\" : [ \"one\", | tensors.layer.weight.shape.0: expected a number from 0 to"
                        + " 9223372036854775807, got \"one\"",
                "\"shape\" : [ | \"shape\" : 3, \"other\" : [ | tensors.layer.weight.shape: expected a list, got 3",
                "\"head_bytes\" : | \"head_bytes\" : 99999999, \"h\" : | files.model.safetensors: expected head_bytes within its",
                "\"crc32c\" : [ \" | \"crc32c\" : [ \"x | files.model.safetensors.crc32c.0: expected eight"
                        + " hexadecimal digits, got \"x",
                "\"state-00001 | \"../state-00001 | files: expected plain names, got \"../state-00001-of-00001.safetensors\"",
                "\"files\" : { | \"files\" : { \"a\" : 7, | files.a: expected an object, got 7",
                "\"format\" : | \"format\" : \"f\", \"f\" : | format: expected chagres-checkpoint, got \"f\"",
                "\"step\" : | step | expected JSON, got other text: "
            })
    void fieldsOfManifestsAreChecked(String found, String other, String expected) throws IOException {
        Path run = folder.resolve("run");
        withState(SEED, state -> {
            state.save(CheckpointFolder.of(run), 1, Map.of());
            Path manifest = CheckpointFolder.of(run).step(1).resolve("chagres.json");
            try {
                String text = Files.readString(manifest).replaceFirst("\\w{8}\"\\s*}\\s*$", "00000000\"\n}\n");
                int at = text.indexOf(found);
                assertTrue(at > 0, text);
                text = text.substring(0, at) + other + text.substring(at + found.length());
                byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                String sum = BlockSums.digits(BlockSums.of(MemorySegment.ofArray(bytes)));
                Files.writeString(manifest, text.replaceFirst("00000000\"\n}\n$", sum + "\"\n}\n"));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            String told = refusal(() -> state.load(run));
            assertTrue(told.startsWith(manifest + ": " + expected), told);
        });
    }

    /** Every rank tells what one has met, nothing is published, and ranks can go on. */
    @Test
    void aFailureEndsTheSaveOnEveryRank() throws IOException {
        Path file = Files.writeString(folder.resolve("file"), "in the way");
        Path run = folder.resolve("run");
        withRanks(3, SEED, state -> {
            var e = assertThrows(SafetensorsException.class, () -> state.save(CheckpointFolder.of(file), 1, Map.of()));
            assertEquals(file + ": expected a folder or a new name, got a file", e.getMessage());
            state.save(CheckpointFolder.of(run), 1, Map.of());
            state.load(run);
        });
        assertEquals(List.of("latest", "step-00000001"), names(run));
    }

    @Test
    void argumentsAreChecked() {
        assertEquals(
                "every: expected 0 or more, got -1",
                assertThrows(IllegalArgumentException.class, () -> new Retention(1, -1, 0))
                        .getMessage());
        assertEquals(
                "last: expected at least 1 beside every 2 and best 0, for 0 keeps all, got 0",
                assertThrows(IllegalArgumentException.class, () -> new Retention(0, 2, 0))
                        .getMessage());
        CheckpointFolder checkpoints = CheckpointFolder.of(Path.of("run"));
        assertEquals("checkpoints in run, Retention[last=0, every=0, best=0]", checkpoints.toString());
        assertEquals(Path.of("run", "step-00000012"), checkpoints.step(12));
        assertEquals(Retention.ALL, checkpoints.retention());
        assertEquals(Path.of("run"), checkpoints.path());
    }
}
