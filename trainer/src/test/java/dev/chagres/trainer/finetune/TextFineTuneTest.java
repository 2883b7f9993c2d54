package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** {@code finetune --text} on a small decoder in a folder of transformers. */
@Tag("L0")
class TextFineTuneTest {
    private static final Pattern LOSS = Pattern.compile("step (\\d+): loss ([\\d.]+)");

    @TempDir
    private Path parent;

    private Path folder;
    private String out = "";
    private String err = "";

    @BeforeEach
    void writeFiles() throws IOException {
        folder = parent.resolve("model");
        DecoderConfig config = new DecoderConfig(
                        new DecoderSizes(422, 2, 32, 4, 2, 16, 48, 128), DecoderForm.of(DecoderArchitecture.QWEN3, 16))
                .withTokens(new SpecialTokens(Optional.of(420), List.of(421), Optional.empty()));
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.FLOAT32, 77)) {
            Path tokenizer = Path.of("../models/src/test/resources/tokenizers/qwen");
            DecoderCheckpoint.save(model, folder, SaveConfig.standard().withTokenizerFrom(tokenizer));
        }
        write("pairs.jsonl", 120);
        write("held.jsonl", 20);
    }

    private void write(String name, int count) throws IOException {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            lines.add("{\"prompt\": \"" + i + " times the dog\", \"completion\": \" jumps over " + i + " words\"}");
        }
        Files.write(parent.resolve(name), lines);
    }

    private int run(String... options) {
        var outBytes = new ByteArrayOutputStream();
        var errBytes = new ByteArrayOutputStream();
        Stream<String> common = Stream.of(
                "--model=" + folder,
                "--text=" + parent.resolve("pairs.jsonl"),
                "--context=64",
                "--tokens-per-step=256",
                "--epochs=4");
        int status = FineTune.run(
                new PrintStream(outBytes, true, StandardCharsets.UTF_8),
                new PrintStream(errBytes, true, StandardCharsets.UTF_8),
                Stream.concat(common, Stream.of(options)).toArray(String[]::new));
        out = outBytes.toString(StandardCharsets.UTF_8);
        err = errBytes.toString(StandardCharsets.UTF_8);
        return status;
    }

    private double[] losses() {
        return LOSS.matcher(out)
                .results()
                .mapToDouble(found -> Double.parseDouble(found.group(2)))
                .toArray();
    }

    private static float[] weight(Parameter parameter, Device device) {
        return parameter.weight().toFloats(device.stream());
    }

    @Test
    void theBestAdaptersAreSavedForPeft() {
        Path saved = parent.resolve("adapters");
        assertEquals(
                0,
                run(
                        "--eval-text=" + parent.resolve("held.jsonl"),
                        "--lora=r=4,target=query,value,gate,fc2",
                        "--learning-rate=0.02",
                        "--save=" + saved),
                () -> err);
        assertTrue(
                out.startsWith("120 sequences of " + parent.resolve("pairs.jsonl") + ", 20 sequences of "
                        + parent.resolve("held.jsonl") + "; "),
                out);
        double[] losses = losses();
        assertTrue(losses[losses.length - 1] < losses[0] - 0.08, out);
        assertTrue(out.contains(", perplexity ") && out.contains(", best so far"), out);
        LoraConfig lora = PeftAdapters.config(folder, saved);
        assertEquals(4, lora.rank());
        assertEquals(8, lora.alpha());
        assertEquals(8, lora.targets().size(), "four products of each of two layers");
        assertEquals(Optional.of(folder), PeftAdapters.base(saved));
        try (Device device = Device.open();
                Decoder before = DecoderCheckpoint.open(device, folder, DType.FLOAT32);
                Decoder after = PeftAdapters.openDecoder(device, folder, saved, DType.FLOAT32)) {
            for (Parameter parameter : before.parameters().all()) {
                assertArrayEquals(
                        weight(parameter, device),
                        weight(after.parameters().get(parameter.name()), device),
                        parameter.name() + " is frozen");
            }
            assertTrue(weight(after.parameters().get("layers.1.mlp.fc2.lora_B"), device)[0] != 0);
        }
    }

    @Test
    void aWholeModelIsSavedAtTheEnd() {
        Path saved = parent.resolve("whole");
        assertEquals(0, run("--learning-rate=0.003", "--eval-every=5", "--save=" + saved), () -> err);
        double[] losses = losses();
        assertTrue(losses[losses.length - 1] < losses[0] - 0.2, out);
        assertTrue(out.strip().matches("(?s).*; (\\d+) steps\n.*saved: step \\1"), out);
        assertEquals(DecoderCheckpoint.config(folder), DecoderCheckpoint.config(saved));
        assertTrue(Files.exists(saved.resolve("tokenizer.json")));
        assertEquals(0, run("--eval-fraction=0.2", "--save=" + parent.resolve("part")), () -> err);
        assertTrue(out.matches("(?s)(9|10)\\d sequences of .*, held out (1|2|3)\\d sequences of .*best so far.*"), out);
        folder = saved;
        assertEquals(0, run("--learning-rate=1e-9", "--save=" + parent.resolve("again")), () -> err);
        assertTrue(losses()[0] < losses[0] - 0.2, out);
    }

    /** Without evaluations the last state is kept, from which the same command goes on. */
    @Test
    void goesOnAfterAFailure() throws IOException {
        String[] options = {
            "--model=" + folder,
            "--text=" + parent.resolve("pairs.jsonl"),
            "--context=64",
            "--tokens-per-step=512",
            "--epochs=2",
            "--eval-every=4",
            "--resume-saved",
            "--save="
        };
        String save = options[options.length - 1];
        options[options.length - 1] = save + parent.resolve("whole");
        var err = new PrintStream(new ByteArrayOutputStream());
        assertEquals(0, FineTune.run(new PrintStream(new ByteArrayOutputStream()), err, options));
        options[options.length - 1] = save + parent.resolve("parts");
        var failing = new PrintStream(new ByteArrayOutputStream()) {
            @Override
            public PrintStream printf(Locale locale, String format, Object... arguments) {
                throw new UncheckedIOException(new IOException("gone"));
            }
        };
        assertEquals(1, FineTune.run(failing, err, options));
        assertTrue(Files.exists(parent.resolve("parts.best.safetensors")) && Files.notExists(parent.resolve("parts")));
        var told = new ByteArrayOutputStream();
        assertEquals(0, FineTune.run(new PrintStream(told, true, StandardCharsets.UTF_8), err, options));
        assertTrue(told.toString(StandardCharsets.UTF_8).startsWith("goes on from "));
        assertEquals(
                -1,
                Files.mismatch(parent.resolve("whole/model.safetensors"), parent.resolve("parts/model.safetensors")));
    }

    @Test
    void wrongOptionsAreToldInOneLine() {
        String list = " (finetune --help lists the options)";
        var told = new ByteArrayOutputStream();
        for (var options : Map.of(
                        "--task=tokens", "--task: expected none beside --text, got one",
                        "--early-stopping=2",
                                "--early-stopping: expected --eval-text or --eval-fraction beside it, got none",
                        "--metric=spearman", "--metric: expected loss with texts, got spearman",
                        "--lora=target=fc1",
                                "--lora: target: expected some of query, key, value, projection, gate, up, fc2, got fc1")
                .entrySet()) {
            assertEquals(2, run(options.getKey(), "--save=" + parent.resolve("none")), options.getKey());
            assertEquals("finetune: " + options.getValue() + list, err.strip());
        }
        assertEquals(
                2,
                FineTune.run(
                        System.out,
                        new PrintStream(told, true, StandardCharsets.UTF_8),
                        "--model=" + folder,
                        "--task=tokens",
                        "--train=x",
                        "--eval=x",
                        "--save=" + parent.resolve("none")));
        assertEquals(
                "finetune: --text: expected files beside --model of a decoder, got none" + list,
                told.toString(StandardCharsets.UTF_8).strip());
        folder = Path.of("..", "models", "src", "test", "resources", "huggingface", "token-dropout");
        assertEquals(1, run("--save=" + parent.resolve("none")));
        assertTrue(err.contains("config.json: field architectures: expected one of [LlamaForCausalLM"), err);
    }
}
