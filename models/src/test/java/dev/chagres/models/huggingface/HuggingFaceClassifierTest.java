package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Classifiers that transformers wrote: their logits, loss and gradients, against those that it computed. */
@Tag("L0")
@Tag("L1")
class HuggingFaceClassifierTest {
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 5e-3 : 1e-4;

    @TempDir
    private Path parent;

    /** The columns that count, of each token, or of each sequence's first. */
    static float[] used(Tensor logits, Esm2ClassifierConfig config, int[] lengths, Device device) {
        float[] all = logits.toFloats(device.stream());
        int columns = Math.toIntExact(logits.size(1));
        boolean tokens = config.task() == Task.TOKENS;
        int rows = tokens ? Math.toIntExact(logits.size(0)) : lengths.length;
        float[] used = new float[rows * config.labels()];
        int token = 0;
        for (int row = 0; row < rows; row++) {
            System.arraycopy(all, (tokens ? row : token) * columns, used, row * config.labels(), config.labels());
            token += tokens ? 0 : lengths[row];
        }
        return used;
    }

    /** Of each token: of a sequence's its first. */
    static int[] labels(StoredModel stored, Task task) {
        int[] given = stored.ints("labels");
        if (task == Task.TOKENS) {
            return given;
        }
        int[] labels = new int[stored.ints("ids").length];
        Arrays.fill(labels, -100);
        int token = 0;
        for (int b = 0; b < given.length; b++) {
            labels[token] = given[b];
            token += stored.ints("lengths")[b];
        }
        return labels;
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#classifiers")
    void logitsLossAndGradients(StoredModel stored) {
        Map<String, float[]> vectors = stored.vectors();
        int[] lengths = stored.ints("lengths");
        try (Device device = Device.open();
                Esm2Classifier model =
                        assertInstanceOf(Esm2Classifier.class, Models.open(device, stored.folder(), DType.FLOAT32));
                Pass pass = Pass.training(device)) {
            Esm2ClassifierConfig config = model.config();
            assertEquals(config, Esm2Checkpoint.classifierConfig(stored.folder()));
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            Tensor logits = model.logits(HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass), pass);
            float[] expected = HuggingFaceEsm2Test.vector(vectors, "logits");
            HuggingFaceEsm2Test.assertClose("logits", expected, used(logits, config, lengths, device), TOLERANCE);
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            Tensor loss = model.loss(
                    HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass),
                    HuggingFaceEsm2Test.tensor(labels(stored, config.task()), pass),
                    pass);
            model.backward(1, null, pass);
            assertEquals(HuggingFaceEsm2Test.vector(vectors, "loss")[0], loss.toFloats(device.stream())[0], TOLERANCE);
            HuggingFaceEsm2Test.compareGradients(model.parameters(), Esm2Tensors.targets(config), vectors, device);
        }
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#classifiers")
    void savedAndOpened(StoredModel stored) throws IOException, InterruptedException {
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Classifier model = Esm2Checkpoint.openClassifier(device, stored.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard().withUnusedFrom(stored.folder()));
            try (Esm2Classifier again = Esm2Checkpoint.openClassifier(device, saved, DType.FLOAT32)) {
                assertEquals(model.config(), again.config());
                model.parameters()
                        .all()
                        .forEach(parameter -> assertArrayEquals(
                                parameter.weight().toFloats(device.stream()),
                                again.parameters()
                                        .get(parameter.name())
                                        .weight()
                                        .toFloats(device.stream())));
            }
        }
    }

    /** A classifier begins with the layers of a masked-language model. */
    @Test
    void beginsWithAnEncoder() {
        Path folder = new StoredModel("token-dropout").folder();
        Esm2Config encoder = Esm2Checkpoint.config(folder).withContext(64);
        Esm2ClassifierConfig config = new Esm2ClassifierConfig(encoder, Task.SEQUENCES, 4);
        try (Device device = Device.open();
                Esm2 trained = Esm2Checkpoint.open(device, folder, DType.FLOAT32);
                Esm2Classifier model = new Esm2Classifier(device, config, DType.FLOAT32, 3);
                Esm2Classifier other = new Esm2Classifier(
                        device,
                        new Esm2ClassifierConfig(
                                Esm2Checkpoint.config(new StoredModel("tokens").folder()), Task.TOKENS, 2),
                        DType.FLOAT32,
                        3)) {
            float[] head =
                    model.parameters().get("classifier.dense.weight").weight().toFloats(device.stream());
            Esm2Checkpoint.load(model, folder);
            for (String same : List.of("embedding.weight", "layers.1.mlp.fc2.bias", "norm.weight")) {
                assertArrayEquals(
                        trained.parameters().get(same).weight().toFloats(device.stream()),
                        model.parameters().get(same).weight().toFloats(device.stream()));
            }
            assertArrayEquals(
                    head,
                    model.parameters().get("classifier.dense.weight").weight().toFloats(device.stream()));
            Path tokens = new StoredModel("tokens").folder();
            assertEquals(
                    "model: expected 3 classes of TOKENS as in " + tokens + ", got 2 classes of TOKENS",
                    assertThrows(IllegalArgumentException.class, () -> Esm2Checkpoint.load(other, tokens))
                            .getMessage());
        }
    }

    private String refusal(StoredModel stored, String field, @Nullable Object value) throws IOException {
        Path folder = parent.resolve("refused");
        if (!Files.exists(folder)) {
            stored.copyTo(folder);
        }
        Map<String, @Nullable Object> fields = new LinkedHashMap<>(
                JsonObject.read(stored.folder().resolve("config.json")).fields());
        fields.put(field, value);
        JsonText.write(folder.resolve("config.json"), fields);
        CheckpointException refusal =
                assertThrows(CheckpointException.class, () -> Esm2Checkpoint.classifierConfig(folder));
        return String.valueOf(refusal.getMessage()).substring(folder.toString().length() + 1);
    }

    @Test
    void otherHeadsAreRefused() throws IOException {
        StoredModel tokens = new StoredModel("tokens");
        assertEquals(
                "config.json: field problem_type: expected single_label_classification or none, got regression",
                refusal(tokens, "problem_type", "regression"));
        assertEquals(
                "config.json: field num_labels: expected 3, the labels of id2label, got 4",
                refusal(tokens, "num_labels", 4));
        assertEquals(
                "config.json: field id2label: expected two labels or more, got {0=a}",
                refusal(tokens, "id2label", Map.of("0", "a")));
        assertEquals(
                "model.safetensors: tensor classifier.weight: expected F32, F16 or BF16 [2, 16], as config.json says, got F32 [3, 16]",
                refusal(tokens, "id2label", null));
        assertThrows(
                CheckpointException.class, () -> Esm2Checkpoint.classifierConfig(new StoredModel("plain").folder()));
    }
}
