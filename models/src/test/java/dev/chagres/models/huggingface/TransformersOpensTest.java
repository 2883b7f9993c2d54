package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What is saved opens in transformers. Runs only with {@code -Dchagres.test.transformers=PYTHON}, which has that package. */
@Tag("transformers")
class TransformersOpensTest {
    @TempDir
    Path parent;

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void maskedLanguageModels(StoredModel stored) throws IOException, InterruptedException {
        Path saved = parent.resolve("saved");
        int[] ids = stored.ints("ids");
        float[] expected;
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard().withShardBytes(40_000));
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            Tensor tokens = HuggingFaceEsm2Test.tensor(ids, pass);
            expected = HuggingFaceEsm2Test.used(model.logits(tokens, pass), device);
        }
        float[] actual = logits(saved, stored);
        assertEquals(ids.length * EsmVocabulary.SIZE, actual.length);
        HuggingFaceEsm2Test.assertClose("logits", actual, expected, HuggingFaceEsm2Test.SAME);
    }

    @ParameterizedTest
    @MethodSource({
        "dev.chagres.models.huggingface.StoredModel#classifiers",
        "dev.chagres.models.huggingface.StoredModel#targets"
    })
    void classifiers(StoredModel stored) throws IOException, InterruptedException {
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Classifier model = Esm2Checkpoint.openClassifier(device, stored.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard().withUnusedFrom(stored.folder()));
        }
        float[] expected = HuggingFaceEsm2Test.vector(stored.vectors(), "logits");
        HuggingFaceEsm2Test.assertClose("logits", expected, logits(saved, stored), 1e-5);
    }

    @ParameterizedTest
    @ValueSource(strings = {"base", "base-pooler"})
    void modelsWithoutAHead(String name) throws IOException, InterruptedException {
        StoredModel stored = new StoredModel(name);
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Base model = Esm2Checkpoint.openBase(device, stored.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard());
        }
        Map<String, float[]> actual = computed(saved, stored);
        HuggingFaceEsm2Test.assertClose(
                "hidden", HuggingFaceEsm2Test.vector(stored.vectors(), "hidden"), vector(actual, "logits"), 1e-5);
        if (name.endsWith("pooler")) {
            HuggingFaceEsm2Test.assertClose(
                    "pooled", HuggingFaceEsm2Test.vector(stored.vectors(), "pooled"), vector(actual, "pooled"), 1e-5);
        }
    }

    private static float[] vector(Map<String, float[]> all, String name) {
        return HuggingFaceEsm2Test.vector(all, name);
    }

    /** Returns the logits of transformers for a saved folder and the stored vectors' input. */
    private float[] logits(Path saved, StoredModel stored) throws IOException, InterruptedException {
        return vector(computed(saved, stored), "logits");
    }

    private Map<String, float[]> computed(Path saved, StoredModel stored) throws IOException, InterruptedException {
        Path output = parent.resolve("logits.safetensors");
        TransformersPython.run(
                parent, "logits_of_saved.py", saved, stored.folder().resolve("vectors.safetensors"), output);
        return StoredModel.floats(output);
    }
}
