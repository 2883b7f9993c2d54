package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.SaveConfig;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** {@code train --text} through the whole program, with a small decoder in a folder of transformers. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class TextTrainTest {
    private static final int STEPS = 4;

    @TempDir
    private Path parent;

    private Path folder;
    private Path pairs;
    private Path held;
    private String out = "";
    private String err = "";

    @BeforeEach
    void writeFiles() throws IOException {
        folder = parent.resolve("model");
        DecoderConfig config = new DecoderConfig(
                        new DecoderSizes(422, 2, 32, 4, 2, 16, 48, 128), DecoderForm.of(DecoderArchitecture.QWEN3, 16))
                .withTokens(new SpecialTokens(Optional.of(420), List.of(421), Optional.empty()));
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.BFLOAT16, 77)) {
            Path tokenizer = Path.of("../models/src/test/resources/tokenizers/qwen");
            DecoderCheckpoint.save(model, folder, SaveConfig.standard().withTokenizerFrom(tokenizer));
        }
        pairs = write("pairs.jsonl", 200);
        held = write("held.jsonl", 20);
    }

    private Path write(String name, int count) throws IOException {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            lines.add("{\"prompt\": \"" + i + " times the dog\", \"completion\": \" jumps over " + i + " words\"}");
        }
        return Files.write(parent.resolve(name), lines);
    }

    private int run(String... options) {
        var outBytes = new ByteArrayOutputStream();
        var errBytes = new ByteArrayOutputStream();
        String[] common = {
            "--model=" + folder,
            "--context=64",
            "--tokens-per-step=512",
            "--recipe=fp32",
            "--learning-rate=3e-3",
            "--warm-up-steps=1",
            "--decay=constant",
            "--seed=3"
        };
        int status = Train.run(
                DevicePlatform::open,
                new StandardOutput(outBytes, StandardCharsets.UTF_8),
                new PrintStream(errBytes, true, StandardCharsets.UTF_8),
                Stream.concat(Stream.of(common), Stream.of(options)).toArray(String[]::new));
        out = outBytes.toString(StandardCharsets.UTF_8);
        err = errBytes.toString(StandardCharsets.UTF_8);
        return status;
    }

    /** Trains on the pairs, and returns the lines of the report behind the first. */
    private List<Map<String, Object>> train(String... options) throws IOException {
        Path report = parent.resolve("report.jsonl");
        assertEquals(
                0,
                run(Stream.concat(Stream.of("--text=" + pairs, "--report=" + report), Stream.of(options))
                        .toArray(String[]::new)),
                () -> out + err);
        List<Map<String, Object>> lines = new ArrayList<>();
        for (String line : Files.readAllLines(report)) {
            lines.add(JSON.std.mapFrom(line));
        }
        assertEquals(pairs.toString(), lines.getFirst().get("text"));
        return lines.subList(1, lines.size());
    }

    private static double loss(Map<String, Object> line) {
        return ((Number) line.get("loss")).doubleValue();
    }

    @Test
    void aRunIsEvaluatedAndItsFolderOpensAgain() throws IOException {
        Path saved = parent.resolve("run");
        List<Map<String, Object>> lines = train("--steps=8", "--eval-text=" + held, "--save=" + saved + "/");
        Map<String, Object> evaluation = lines.getLast();
        assertEquals(8, evaluation.get("evaluation"), lines::toString);
        assertEquals(20, evaluation.get("sequences"));
        assertTrue(loss(lines.get(7)) < loss(lines.getFirst()) - 0.3, lines::toString);
        assertTrue(out.startsWith("Qwen3ForCausalLM " + folder + ": "), out);
        assertTrue(out.contains(" tokens of 20 sequences)"), out);
        evaluatesAsTheRunDid(saved, evaluation);
        Path step;
        try (Stream<Path> all = Files.list(saved)) {
            step = all.filter(path -> Files.exists(path.resolve("config.json")))
                    .findFirst()
                    .orElseThrow();
        }
        assertTrue(Files.exists(step.resolve("tokenizer.json")));
        folder = step;
        List<Map<String, Object>> more = train("--steps=1");
        assertTrue(loss(more.getFirst()) < loss(lines.getFirst()) - 0.3, more::toString);
    }

    @Test
    void aPartOfTheTextsIsHeldOut() throws IOException {
        Path state = parent.resolve("part");
        List<Map<String, Object>> lines = train("--steps=2", "--eval-fraction=0.25", "--save=" + state);
        Map<String, Object> evaluation = lines.getLast();
        assertEquals(50, ((Number) evaluation.get("sequences")).doubleValue(), 20, lines::toString);
        Path report = parent.resolve("evaluation.jsonl");
        var bytes = new ByteArrayOutputStream();
        PrintStream told = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        int status = Evaluate.run(
                DevicePlatform.opener(),
                told,
                told,
                "--resume=" + state,
                "--text=" + pairs,
                "--eval-fraction=0.25",
                "--report=" + report);
        assertEquals(0, status, bytes.toString(StandardCharsets.UTF_8));
        Map<String, Object> line = JSON.std.mapFrom(Files.readString(report));
        assertEquals(evaluation.get("sequences"), line.get("sequences"));
        assertEquals(loss(evaluation), loss(line), 1e-6);
        assertEquals(2, run("--text=" + pairs, "--steps=3", "--resume=" + state), "a run on all texts is another one");
        assertTrue(err.contains("expected a run with --text "), err);
    }

    /** By its state, and as a folder of transformers, whose weights are rounded to nothing here. */
    private void evaluatesAsTheRunDid(Path saved, Map<String, Object> expected) throws IOException {
        Path step = CheckpointFolder.of(saved).step(8);
        for (List<String> of :
                List.of(List.of("--resume=" + step, "--model=" + folder), List.of("--model=" + step, "--context=64"))) {
            Path report = parent.resolve("evaluation.jsonl");
            List<String> all = new ArrayList<>(of);
            all.addAll(List.of("--text=" + held, "--report=" + report));
            var bytes = new ByteArrayOutputStream();
            PrintStream told = new PrintStream(bytes, true, StandardCharsets.UTF_8);
            int status = Evaluate.run(DevicePlatform.opener(), told, told, all.toArray(String[]::new));
            String text = bytes.toString(StandardCharsets.UTF_8);
            assertEquals(0, status, text);
            Map<String, Object> line = JSON.std.mapFrom(Files.readString(report));
            // The folder has weights of 16 bits, which CUDA trains.
            assertEquals(loss(expected), loss(line), Provider.current() == Provider.CUDA ? 1e-2 : 1e-5, text);
            assertEquals(expected.get("labelled"), line.get("labelled"), text);
            assertTrue(text.contains(", perplexity ") && text.contains(" tokens of 20 sequences"), text);
        }
    }

    @Test
    void aRunGoesOnAtItsPlaceInTheText() throws IOException {
        Path state = parent.resolve("state");
        List<Map<String, Object>> whole = train("--steps=" + STEPS);
        train("--steps=2", "--save=" + state);
        List<Map<String, Object>> rest = train("--steps=" + STEPS, "--resume=" + state);
        assertEquals(loss(whole.get(2)), loss(rest.get(0)));
        assertEquals(loss(whole.get(3)), loss(rest.get(1)));
        Files.writeString(pairs, "{\"text\": \"another one\"}\n");
        assertEquals(2, run("--text=" + pairs, "--steps=" + STEPS, "--resume=" + state));
        assertTrue(err.contains("expected a run with --text " + pairs + ", "), err);
    }

    @Test
    void strategiesOfSeveralRanksTrainIt() throws IOException {
        DevicesNeeded.assume(2);
        List<Map<String, Object>> one = train("--steps=2", "--accumulate=2");
        List<Map<String, Object>> two = train("--steps=2", "--ranks=2", "--strategy=zero3", "--loss-tokens=0");
        List<Map<String, Object>> split =
                train("--steps=2", "--ranks=2", "--strategy=tp", "--accumulate=2", "--loss-tokens=40");
        assertEquals(loss(one.get(1)), loss(two.get(1)), 1e-4);
        assertEquals(loss(one.get(1)), loss(split.get(1)), 1e-4);
    }

    @Test
    void moreTensorRanksThanHeadsAreRefused() throws IOException {
        DevicesNeeded.assume(4);
        assertEquals(2, run("--text=" + pairs, "--ranks=4", "--strategy=tp"));
        assertTrue(err.contains("as divide the 2 heads of --model"), err);
    }

    @Test
    void wrongOptionsAndFilesAreToldInOneLine() throws IOException {
        Path bad = Files.writeString(parent.resolve("bad.jsonl"), "{\"text\": \"good\"}\n{\"text\": 5}\n");
        assertEquals(1, run("--text=" + bad, "--steps=1"));
        assertEquals("train: " + bad + ":2: expected a text for text, got a number", err.strip());
        String list = " (train --help lists the options)";
        for (var options : Map.of(
                        "--text=a --fasta=b", "--fasta: expected none beside --text, got some",
                        "--eval-text=a", "--eval-text: expected --text beside it, got none",
                        "--text=a --eval-fasta=b", "--eval-fasta: expected none beside --text, got one",
                        "--text=a --form=nvidia", "--form: expected none beside --text, got nvidia",
                        "--text=a --report=a", "--report: a is the file of --text; name another one")
                .entrySet()) {
            assertEquals(2, run(options.getKey().split(" ")), options.getKey());
            assertEquals("train: " + options.getValue() + list, err.strip());
        }
        assertEquals(1, run("--text=" + parent.resolve("none.txt"), "--steps=1"));
        assertTrue(err.contains("none.txt: could not be read: "), err);
        for (String[] options : new String[][] {{"--text=/dev/null"}, {"--text=" + pairs, "--eval-text=/dev/null"}}) {
            String[] all = Arrays.copyOf(options, options.length + 1);
            all[options.length] = "--steps=1";
            assertEquals(1, run(all));
            String text =
                    "train: /dev/null: expected a text of two tokens or more, got none and 1 with nothing to learn";
            assertTrue(err.startsWith(text), err);
            assertEquals(1, err.lines().count());
        }
    }
}
