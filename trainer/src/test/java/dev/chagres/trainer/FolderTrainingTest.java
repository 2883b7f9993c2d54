package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code --model FOLDER} goes on with the ESM-2 in a folder of Hugging Face, under each strategy. */
@Tag("L0")
class FolderTrainingTest {
    private static final int STEPS = 3;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @TempDir
    private Path temporary;

    private Path folder;

    @BeforeEach
    void saveModel() {
        folder = temporary.resolve("model");
        Esm2Config config = new Esm2Config(2, 32, 4, 1026).withForm(Esm2Form.published());
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config, DType.FLOAT32, 5)) {
            Esm2Checkpoint.save(model, folder, SaveConfig.standard());
        }
    }

    private int train(String... arguments) {
        out.reset();
        err.reset();
        return Train.run(
                DevicePlatform::open,
                new StandardOutput(out, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private int evaluate(String... arguments) {
        out.reset();
        err.reset();
        PrintStream text = new PrintStream(out, true, StandardCharsets.UTF_8);
        return Evaluate.run(
                DevicePlatform.opener(), text, new PrintStream(err, true, StandardCharsets.UTF_8), arguments);
    }

    private String told() {
        return out.toString(StandardCharsets.UTF_8) + err.toString(StandardCharsets.UTF_8);
    }

    private List<Map<String, Object>> steps(String options) throws IOException {
        Path report = temporary.resolve("r.jsonl");
        List<String> arguments = new ArrayList<>(List.of(
                "--model=" + folder,
                "--steps=" + STEPS,
                "--context=64",
                "--tokens-per-step=256",
                "--recipe=fp32",
                "--report=" + report));
        if (!options.isEmpty()) {
            arguments.addAll(List.of(options.split(" ")));
        }
        assertEquals(0, train(arguments.toArray(String[]::new)), this::told);
        List<Map<String, Object>> lines = new ArrayList<>();
        for (String line : Files.readAllLines(report)) {
            lines.add(JSON.std.mapFrom(line));
        }
        return lines;
    }

    private static double loss(Map<String, Object> step) {
        return ((Number) step.get("loss")).doubleValue();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "--strategy=ddp",
                "--strategy=zero1",
                "--strategy=zero3",
                "--strategy=tp --sequence-parallel",
                "--strategy=pp --accumulate=2",
                "--mesh=shard=2,tensor=2"
            })
    void ranksBeginWithTheFoldersWeights(String options) throws IOException {
        String[] ofRanks = (options.startsWith("--mesh") ? options : "--ranks=2 " + options).split(" ");
        DevicesNeeded.assumeFor(ofRanks);
        List<Map<String, Object>> one = steps("");
        assertEquals(folder.toString(), one.getFirst().get("model"));
        assertEquals("folder", one.getFirst().get("form"));
        List<Map<String, Object>> two = steps(String.join(" ", ofRanks));
        for (int i = 1; i <= STEPS; i++) {
            assertEquals(loss(one.get(i)), loss(two.get(i)), 2e-5, options + ", step " + i);
        }
        assertFalse(loss(one.get(1)) == loss(one.get(2)));
    }

    @Test
    void aSavedRunGoesOnAndIsEvaluated() throws IOException {
        Path file = temporary.resolve("state.safetensors");
        steps("--save=" + file);
        assertEquals(0, evaluate("--resume=" + file), this::told);
        assertTrue(told().contains(" after 3 steps: loss "), this::told);
        String afterThree = told().replaceFirst("(?s).*loss ", "loss ");
        assertEquals(0, evaluate("--model=" + folder, "--context=64"), this::told);
        assertTrue(told().contains("uniprot.fasta.gz of " + folder + ": loss "), this::told);
        assertFalse(afterThree.equals(told().replaceFirst("(?s).*loss ", "loss ")));
        assertEquals(2, train("--resume=" + file, "--steps=4", "--model=tiny", "--recipe=fp32"));
        assertTrue(told().contains("expected a file of model tiny, got "), this::told);
    }

    @Test
    void foldersOfOtherModelsAreRefused() throws IOException {
        Files.writeString(
                folder.resolve("config.json"),
                Files.readString(folder.resolve("config.json")).replace("EsmForMaskedLM", "EsmForTokenClassification"));
        assertEquals(1, train("--model=" + folder));
        String text = err.toString(StandardCharsets.UTF_8);
        assertTrue(text.startsWith("train: --model: "), text);
        assertFalse(text.strip().contains("\n"), text);
        assertEquals(1, evaluate("--model=" + folder));
        assertTrue(err.toString(StandardCharsets.UTF_8).startsWith("evaluate: --model: "), this::told);
    }
}
