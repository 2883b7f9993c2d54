package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

/** Saved states that a disk or a copy has damaged. */
@Tag("L0")
class SavedFileDamageTest {
    private static final long SEED = 20260728;
    private static final int FLIPS = 500;
    /** Of these so many in the header, which is a small part of the file. */
    private static final int IN_HEADER = 150;

    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path folder;

    private int train(String... arguments) {
        err.reset();
        return Train.run(
                DevicePlatform::open,
                new StandardOutput(new ByteArrayOutputStream(), StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String told() {
        return err.toString(StandardCharsets.UTF_8).strip();
    }

    private static String[] options(String... more) {
        List<String> all = new ArrayList<>(List.of(
                "--model=tiny", "--context=64", "--tokens-per-step=512", "--decay=constant", "--warm-up-steps=2"));
        all.addAll(List.of(more));
        return all.toArray(String[]::new);
    }

    /** Numbers, header and metadata: each flip is an error that names the file and the tensor, or the header. */
    @Test
    void everyFlippedBitIsNoticed() throws IOException {
        Path file = folder.resolve("state");
        assertEquals(0, train(options("--steps=2", "--save=" + file)), this::told);
        byte[] good = Files.readAllBytes(file);
        int header = 8 + (good[0] & 255) + ((good[1] & 255) << 8) + ((good[2] & 255) << 16);
        var options = new TrainOptions();
        new CommandLine(options).parseArgs(options("--steps=4", "--resume=" + file));
        Random random = new Random(SEED);
        try (Platform platform = DevicePlatform.open();
                Training model = platform.open(options.plan(platform.isGpu(), platform.devices()))) {
            TrainingPlan plan = options.plan(platform.isGpu(), platform.devices());
            for (int i = 0; i < FLIPS; i++) {
                int at = random.nextInt(i < IN_HEADER ? header : good.length);
                int bit = random.nextInt(8);
                good[at] ^= (byte) (1 << bit);
                Files.write(file, good);
                String flip = "seed " + SEED + ", byte " + at + " of " + good.length + ", bit " + bit;
                var e = assertThrows(
                        TrainingException.class, () -> SavedRun.of(plan).load(model, file, Wording.OPTIONS), flip);
                String place = at < header ? "header: " : "tensor \"";
                String text = e.getMessage();
                assertTrue(text.startsWith("--resume: " + file + ": " + place), () -> text + " after " + flip);
                assertTrue(e.getCause() instanceof SafetensorsException, flip);
                good[at] ^= (byte) (1 << bit);
            }
            Files.write(file, good);
            SavedRun.of(plan).load(model, file, Wording.OPTIONS);
        }
    }

    /** A flipped bit of the step or of the place in the data would go unnoticed in most of their bits. */
    @Test
    void aDamagedStepEndsTheRunWithItsName() throws IOException {
        Path file = folder.resolve("state");
        assertEquals(0, train(options("--steps=2", "--save=" + file)), this::told);
        byte[] bytes = Files.readAllBytes(file);
        try (SafetensorsFile saved = SafetensorsFile.open(file)) {
            long all = saved.entries().values().stream()
                    .mapToLong(entry -> entry.byteSize())
                    .sum();
            long before = 0;
            for (var entry : saved.entries().values()) {
                if (entry.name().equals("data.sequences")) {
                    break;
                }
                before += entry.byteSize();
            }
            bytes[Math.toIntExact(bytes.length - all + before)] ^= 1;
        }
        Files.write(file, bytes);
        assertEquals(1, train(options("--steps=4", "--resume=" + file)));
        String text = "train: --resume: " + file
                + ": tensor \"data.sequences\": damaged since it was written: expected the" + " checksum ";
        assertTrue(told().startsWith(text), told());
    }

    /** As those that were written before there were checksums, and texts of the data. */
    @Test
    void anOlderFileIsTaken() throws IOException {
        Path file = folder.resolve("state");
        assertEquals(0, train(options("--steps=2", "--save=" + file)), this::told);
        Path older = folder.resolve("older");
        try (SafetensorsFile saved = SafetensorsFile.open(file)) {
            var texts = new HashMap<>(saved.metadata());
            texts.keySet().removeAll(List.of("fasta", "fasta-content", "context"));
            List<TensorSource> sources = new ArrayList<>();
            saved.entries()
                    .forEach((name, entry) -> sources.add(
                            TensorSource.of(new TensorSpec(name, entry.dtype(), entry.shape()), entry.bytes())));
            SafetensorsWriter.write(older, sources, texts);
        }
        assertEquals(0, train(options("--steps=4", "--resume=" + older)), this::told);
    }
}
