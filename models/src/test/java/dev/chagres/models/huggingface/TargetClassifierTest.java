package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.pass.Pass;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Regression, and classes that may be there together: logits, loss and gradients are those that transformers computed. */
@Tag("L0")
class TargetClassifierTest {
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 1e-2 : 1e-4;
    /** The gradient of a squared error begins with a difference that is small, as its numbers are not. */
    private static final double GRADIENTS = Provider.current() == Provider.CUDA ? 2e-2 : TOLERANCE;

    @TempDir
    private Path parent;

    /** Of each token a row: NaN but for the first of each sequence. */
    private static Tensor targets(StoredModel stored, int labels, Pass pass) {
        float[] given = HuggingFaceEsm2Test.vector(stored.vectors(), "labels");
        int[] lengths = stored.ints("lengths");
        float[] all = new float[Arrays.stream(lengths).sum() * labels];
        Arrays.fill(all, Float.NaN);
        int token = 0;
        for (int i = 0; i < lengths.length; i++) {
            System.arraycopy(given, i * labels, all, token * labels, labels);
            token += lengths[i];
        }
        Tensor targets = pass.scope().tensor(DType.FLOAT32, all.length / labels, labels);
        targets.set(pass.stream(), all);
        return targets;
    }

    @ParameterizedTest
    @ValueSource(strings = {"regression", "multi-label"})
    void logitsLossAndGradients(String name) {
        StoredModel stored = new StoredModel(name);
        Map<String, float[]> vectors = stored.vectors();
        int[] lengths = stored.ints("lengths");
        try (Device device = Device.open();
                Esm2Classifier model = Esm2Checkpoint.openClassifier(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            Esm2ClassifierConfig config = model.config();
            assertEquals(name.equals("regression") ? Problem.REGRESSION : Problem.MULTI_LABEL, config.problem());
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            Tensor ids = HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass);
            float[] all = model.logits(ids, pass).toFloats(device.stream());
            float[] used = new float[lengths.length * config.labels()];
            int token = 0;
            for (int i = 0; i < lengths.length; i++) {
                System.arraycopy(all, token * 16, used, i * config.labels(), config.labels());
                token += lengths[i];
            }
            HuggingFaceEsm2Test.assertClose("logits", HuggingFaceEsm2Test.vector(vectors, "logits"), used, TOLERANCE);
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            ids = HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass);
            Tensor loss = model.loss(ids, targets(stored, config.labels(), pass), pass);
            model.backward(1, null, pass);
            assertEquals(HuggingFaceEsm2Test.vector(vectors, "loss")[0], loss.toFloats(device.stream())[0], TOLERANCE);
            HuggingFaceEsm2Test.compareGradients(
                    model.parameters(), Esm2Tensors.targets(config), vectors, device, GRADIENTS);
            assertNull(model.scores());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"regression", "multi-label"})
    void theProblemIsSaved(String name) {
        StoredModel stored = new StoredModel(name);
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Classifier model = Esm2Checkpoint.openClassifier(device, stored.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard());
            assertEquals(model.config(), Esm2Checkpoint.classifierConfig(saved));
        }
    }

    @Test
    void otherTargetsAndProblemsAreRefused() throws Exception {
        StoredModel stored = new StoredModel("multi-label");
        try (Device device = Device.open();
                Esm2Classifier model = Esm2Checkpoint.openClassifier(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 3));
            Tensor ids = HuggingFaceEsm2Test.tensor(new int[] {0, 5, 2}, pass);
            IllegalArgumentException refusal =
                    assertThrows(IllegalArgumentException.class, () -> model.loss(ids, ids, pass));
            assertEquals("targets: expected FLOAT32 [3, 3], got INT32 [3]", refusal.getMessage());
        }
        IllegalArgumentException refusal = assertThrows(
                IllegalArgumentException.class,
                () -> new Esm2ClassifierConfig(
                        Esm2Checkpoint.classifierConfig(stored.folder()).encoder(),
                        Task.TOKENS,
                        3,
                        Problem.REGRESSION));
        assertEquals("problem: expected SINGLE_LABEL of tokens, got REGRESSION", refusal.getMessage());
        Path folder = stored.copyTo(parent.resolve("other"));
        String text = Files.readString(folder.resolve("config.json"));
        Files.writeString(folder.resolve("config.json"), text.replace("multi_label_classification", "ranking"));
        CheckpointException other =
                assertThrows(CheckpointException.class, () -> Esm2Checkpoint.classifierConfig(folder));
        assertTrue(
                String.valueOf(other.getMessage()).contains("problem_type: expected single_label"), other.getMessage());
    }
}
