package dev.chagres.trainer.command;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.optim.Optimizer;
import dev.chagres.optim.SGD;
import dev.chagres.parameter.Parameter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class ConvertTest {
    @TempDir
    private Path temporary;

    private String told = "";

    private int convert(Path from, Path to, String... more) {
        var text = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(text, true, StandardCharsets.UTF_8);
        String[] arguments = new String[more.length + 2];
        arguments[0] = "--from=" + from;
        arguments[1] = "--to=" + to;
        System.arraycopy(more, 0, arguments, 2, more.length);
        int status = Convert.run(out, out, arguments);
        told = text.toString(StandardCharsets.UTF_8);
        return status;
    }

    private static float[] logits(Esm2 model) {
        try (PackedModel packed = PackedModel.logits(model, null)) {
            return packed.compute(List.of(new int[] {0, 5, 32, 7, 2}));
        }
    }

    /** A file as train --save writes it, of which weights alone count here. */
    private float[] save(Path file, Esm2Form form, Map<String, String> texts) {
        Esm2Config config = Esm2Config.of(Esm2Size.TINY, 64).withForm(form);
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config, DType.FLOAT32, 3)) {
            RunState.of(model.parameters()).save(file, texts);
            return logits(model);
        }
    }

    private static float[] logits(Path folder) {
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder, DType.FLOAT32)) {
            return logits(model);
        }
    }

    @Test
    void aRunBecomesAFolderThatComputesTheSame() {
        Path file = temporary.resolve("run");
        Path folder = temporary.resolve("folder");
        float[] expected =
                save(file, Esm2Form.published(), Map.of("model", "tiny", "form", "published", "context", "64"));
        assertEquals(0, convert(file, folder), () -> told);
        assertTrue(told.startsWith("wrote " + folder + " (transformers, "), told);
        float[] actual = logits(folder);
        for (int i = 0; i < 5 * 64; i++) {
            if (i % 64 < 33) {
                assertEquals(expected[i], actual[i], 1e-6f);
            }
        }
        assertEquals(1, convert(file, folder));
        assertTrue(told.startsWith("convert: " + folder + ": expected a new or empty folder"), told);
    }

    @Test
    void theAverageOfARunIsWritten() {
        Path file = temporary.resolve("run");
        Path run = temporary.resolve("steps");
        Esm2Config config = Esm2Config.of(Esm2Size.TINY, 64).withForm(Esm2Form.published());
        Map<String, String> texts = Map.of("model", "tiny", "form", "published");
        float[] expected;
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config, DType.FLOAT32, 3);
                Optimizer optimizer = new SGD.Config(0, 0).withAverage(0.5f).make(model.parameters(), List.of())) {
            model.parameters().completeGradients();
            for (Parameter one : model.parameters().all()) {
                one.gradient().copyFrom(device.stream(), one.weight());
            }
            optimizer.step(0.25f);
            RunState state = RunState.of(model.parameters())
                    .optimizer(optimizer)
                    .with(Esm2Checkpoint.files(config, DType.FLOAT32).orElseThrow());
            state.save(file, texts);
            state.save(CheckpointFolder.of(run), 1, texts);
            optimizer.beginEvaluation();
            expected = logits(model);
        }
        for (Path from : List.of(file, CheckpointFolder.of(run).step(1))) {
            Path to = temporary.resolve(from.getFileName() + "-average");
            assertEquals(0, convert(from, to, "--weights=average"), () -> told);
            float[] actual = logits(to);
            for (int i = 0; i < 5 * 64; i++) {
                if (i % 64 < 33) {
                    assertEquals(expected[i], actual[i], 1e-6f);
                }
            }
        }
        save(file, Esm2Form.published(), texts);
        assertEquals(1, convert(file, temporary.resolve("none"), "--weights=average"));
        assertEquals(
                "convert: --weights: expected a run of train --ema, which keeps an average, got " + file, told.strip());
    }

    @Test
    void otherNumbersAreToldAndGoBack() {
        Path file = temporary.resolve("run");
        save(file, Esm2Form.nvidia(), Map.of("model", "tiny"));
        Path folder = temporary.resolve("folder");
        Path theirs = temporary.resolve("theirs");
        Path back = temporary.resolve("back");
        assertEquals(0, convert(file, folder), () -> told);
        assertTrue(
                told.contains(
                        "convert: the new model computes other numbers: its layers compute the GELU by ERF instead"
                                + " of TANH\nconvert: the new model computes other numbers: its head compute"),
                told);
        assertEquals(0, convert(folder, theirs, "--layout=nv-esm"), () -> told);
        assertTrue(told.contains("its layers compute the GELU by TANH instead of ERF"), told);
        assertEquals(0, convert(theirs, back), () -> told);
        assertArrayEquals(logits(folder), logits(back));
        assertEquals(1, convert(folder, temporary.resolve("c"), "--contact-head=" + theirs + "x"));
        assertEquals(2, convert(folder, temporary.resolve("c"), "--layout=onnx"));
        assertTrue(
                told.contains("'--layout': expected one of transformers, nv-esm, nv-esm-unpadded, nvidia, got onnx"),
                told);
    }

    private static float[] weights(TrainedModel model, Device device) {
        return model.parameters()
                .get("layers.0.attention.qkv.linear.weight")
                .weight()
                .toFloats(device.stream());
    }

    @Test
    void adaptersAreMergedIntoTheirModel() {
        Path resources = Path.of("..", "models", "src", "test", "resources");
        Path base = resources.resolve("huggingface/decoders/qwen3");
        Path adapters = resources.resolve("peft/qwen3-query-value");
        Path merged = temporary.resolve("merged");
        assertEquals(1, convert(adapters, merged));
        assertTrue(told.startsWith("convert: --base: expected the folder of the model"), told);
        assertEquals(0, convert(adapters, merged, "--base=" + base), () -> told);
        assertEquals(DecoderCheckpoint.config(base), DecoderCheckpoint.config(merged));
        try (Device device = Device.open();
                Decoder expected = PeftAdapters.openMergedDecoder(device, base, adapters, DType.FLOAT32);
                Decoder actual = DecoderCheckpoint.open(device, merged, DType.FLOAT32)) {
            assertArrayEquals(weights(expected, device), weights(actual, device));
        }
        Path encoder = resources.resolve("huggingface/tokens");
        Path classifier = temporary.resolve("classifier");
        assertEquals(0, convert(resources.resolve("peft/query-value"), classifier, "--base=" + encoder), () -> told);
        try (Device device = Device.open();
                Esm2Classifier expected = PeftAdapters.openMergedClassifier(
                        device, encoder, resources.resolve("peft/query-value"), DType.FLOAT32);
                Esm2Classifier actual = Esm2Checkpoint.openClassifier(device, classifier, DType.FLOAT32)) {
            assertArrayEquals(weights(expected, device), weights(actual, device));
        }
        assertEquals(2, convert(base, temporary.resolve("none"), "--base=" + base));
        assertTrue(told.contains("--base: expected this beside --from with adapters of PEFT"), told);
        assertEquals(2, convert(adapters, temporary.resolve("none"), "--layout=nv-esm"));
        assertTrue(told.contains("--from: expected no --layout, --contact-head and --weights beside adapters"), told);
    }

    /** Of a saved file, of the folder of a run, and there and back in the layout of NVIDIA's recipes: the same numbers. */
    @Test
    void decodersAreConverted() throws IOException {
        Path folder = Path.of("..", "models", "src", "test", "resources", "huggingface/decoders/qwen3");
        Path file = temporary.resolve("file");
        Path run = temporary.resolve("run");
        DecoderConfig config = DecoderCheckpoint.config(folder);
        float[] expected;
        float[] average;
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.FLOAT32, 9);
                Optimizer optimizer = new SGD.Config(0, 0).withAverage(0.5f).make(model.parameters(), List.of())) {
            model.parameters().completeGradients();
            for (Parameter one : model.parameters().all()) {
                one.gradient().copyFrom(device.stream(), one.weight());
            }
            optimizer.step(0.25f);
            RunState state = RunState.of(model.parameters())
                    .optimizer(optimizer)
                    .with(DecoderCheckpoint.files(config, DType.FLOAT32, folder));
            state.save(file, Map.of("model", folder.toString()));
            state.save(CheckpointFolder.of(run), 1, Map.of("model", folder.toString()));
            state.save(CheckpointFolder.of(run), 2, Map.of("model", folder.toString()));
            expected = weights(model, device);
            optimizer.beginEvaluation();
            average = weights(model, device);
        }
        Path theirs = temporary.resolve("theirs");
        Path averaged = temporary.resolve("averaged");
        assertEquals(0, convert(run, theirs, "--layout=nvidia"), () -> told);
        assertTrue(told.contains("wrote " + theirs + " (nvidia, provider "), told);
        assertTrue(Files.readString(theirs.resolve("config.json")).contains("NVQwen3ForCausalLM"));
        assertEquals(0, convert(file, averaged, "--weights=average"), () -> told);
        try (Device device = Device.open()) {
            for (Path from : List.of(file, run, run.resolve("step-00000001"), theirs)) {
                Path to = temporary.resolve(from.getFileName() + "-converted");
                assertEquals(0, convert(from, to), () -> told);
                try (Decoder model = DecoderCheckpoint.open(device, to, DType.FLOAT32)) {
                    assertEquals(config, model.config());
                    assertArrayEquals(expected, weights(model, device), from.toString());
                }
            }
            try (Decoder model = DecoderCheckpoint.open(device, averaged, DType.FLOAT32)) {
                assertArrayEquals(average, weights(model, device), 1e-6f);
            }
        }
        assertEquals(2, convert(file, temporary.resolve("none"), "--layout=nv-esm"));
        assertTrue(told.contains("--layout: expected transformers or nvidia of a decoder, got nv-esm"), told);
        assertEquals(2, convert(file, temporary.resolve("none"), "--contact-head=" + folder));
        assertTrue(told.contains("--contact-head: expected none beside a decoder"), told);
        save(file, Esm2Form.published(), Map.of("model", "tiny", "form", "published"));
        assertEquals(2, convert(file, temporary.resolve("none"), "--layout=nvidia"));
        assertTrue(told.contains("--layout: expected transformers, nv-esm or nv-esm-unpadded of an ESM-2, got"), told);
    }

    @Test
    void otherFilesAreRefused() {
        Path file = temporary.resolve("run");
        save(file, Esm2Form.nvidia(), Map.of());
        assertEquals(1, convert(file, temporary.resolve("folder")));
        assertEquals(
                "convert: --from: " + file
                        + ": expected a file that train --save has written, whose model is a size or a"
                        + " folder that is there, got one without \"model\"",
                told.strip());
        Assertions.assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(temporary.resolve("folder")));
    }
}
