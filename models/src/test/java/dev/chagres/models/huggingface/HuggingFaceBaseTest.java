package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Base.Pooler;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Models without a head against what transformers computed: src/test/vectors/make_huggingface_esm2.py. */
@Tag("L0")
@Tag("L1")
class HuggingFaceBaseTest {
    /** Products on CUDA run as TF32. */
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 5e-3 : 1e-5;

    @TempDir
    private Path parent;

    @ParameterizedTest
    @ValueSource(strings = {"base", "base-pooler"})
    void hiddenStatesAndPooler(String name) {
        StoredModel stored = new StoredModel(name);
        Map<String, float[]> vectors = stored.vectors();
        try (Device device = Device.open();
                Esm2Base model = Esm2Checkpoint.openBase(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            Tensor hidden = model.hidden(HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass), pass);
            float[] states = hidden.toFloats(device.stream());
            HuggingFaceEsm2Test.assertClose("hidden", HuggingFaceEsm2Test.vector(vectors, "hidden"), states, TOLERANCE);
            if (model.pooler() == Pooler.NONE) {
                assertEquals(
                        "pooled: expected a model with a pooler, got one without",
                        assertThrows(IllegalStateException.class, () -> model.pooled(hidden, pass))
                                .getMessage());
                return;
            }
            float[] pooled = model.pooled(hidden, pass).toFloats(device.stream());
            HuggingFaceEsm2Test.assertClose("pooled", HuggingFaceEsm2Test.vector(vectors, "pooled"), pooled, TOLERANCE);
            inDoublePrecision(model, states, stored.ints("lengths"), pooled, device);
        }
    }

    /** {@code tanh(W h + b)} of the first token of each sequence. */
    private static void inDoublePrecision(
            Esm2Base model, float[] states, int[] lengths, float[] pooled, Device device) {
        int hidden = model.config().hidden();
        float[] weight = model.parameters().get("pooler.dense.weight").weight().toFloats(device.stream());
        float[] bias = model.parameters().get("pooler.dense.bias").weight().toFloats(device.stream());
        int token = 0;
        for (int s = 0; s < lengths.length; s++) {
            for (int i = 0; i < hidden; i++) {
                double sum = bias[i];
                for (int j = 0; j < hidden; j++) {
                    sum += (double) weight[i * hidden + j] * states[token * hidden + j];
                }
                assertEquals(Math.tanh(sum), pooled[s * hidden + i], 10 * TOLERANCE);
            }
            token += lengths[s];
        }
    }

    /** Padded sequences and gaps between packed ones have their first tokens elsewhere. */
    @ParameterizedTest
    @ValueSource(strings = {"BSHD", "SBHD", "THD"})
    void firstTokensOfEachLayout(String layout) {
        QkvFormat format = QkvFormat.valueOf(layout);
        StoredModel stored = new StoredModel("base-pooler");
        int[] lengths = stored.ints("lengths");
        int[] ids = stored.ints("ids");
        int longest = Arrays.stream(lengths).max().orElseThrow();
        int[] all = new int[lengths.length * longest];
        Arrays.fill(all, EsmVocabulary.PAD);
        int token = 0;
        for (int s = 0; s < lengths.length; s++) {
            for (int i = 0; i < lengths[s]; i++) {
                all[format == QkvFormat.SBHD ? i * lengths.length + s : s * longest + i] = ids[token++];
            }
        }
        try (Device device = Device.open();
                Esm2Base model = Esm2Checkpoint.openBase(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            int[] padded = new int[lengths.length];
            Arrays.fill(padded, longest);
            pass.sequences(
                    format == QkvFormat.THD
                            ? Sequences.packed(pass.scope(), lengths, padded)
                            : Sequences.padded(format, CuSeqlens.ofLengths(pass.scope(), lengths), longest));
            Tensor hidden = model.hidden(HuggingFaceEsm2Test.tensor(all, pass), pass);
            HuggingFaceEsm2Test.assertClose(
                    "pooled",
                    HuggingFaceEsm2Test.vector(stored.vectors(), "pooled"),
                    model.pooled(hidden, pass).toFloats(device.stream()),
                    TOLERANCE);
        }
    }

    /** In and out again each tensor has the same name and bytes, but for norms and frequencies, which 4.x reads, too. */
    @ParameterizedTest
    @ValueSource(strings = {"base", "base-pooler"})
    void savesTheSameTensors(String name) throws IOException {
        StoredModel stored = new StoredModel(name);
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Base model = Esm2Checkpoint.openBase(device, stored.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, saved, SaveConfig.standard().withUnusedFrom(stored.folder()));
            assertEquals(model.config(), Esm2Checkpoint.config(saved));
        }
        Map<String, byte[]> theirs = new TreeMap<>();
        SavedEsm2Test.bytes(stored.copyTo(parent.resolve("copy"))).forEach((tensor, bytes) -> {
            theirs.put(
                    tensor.replace("gamma", "weight").replace("beta", "bias").replace("layer.*.", "layer.0."), bytes);
        });
        Map<String, byte[]> ours = SavedEsm2Test.bytes(saved);
        assertEquals(theirs.keySet(), ours.keySet());
        theirs.forEach((tensor, bytes) -> assertArrayEquals(bytes, ours.get(tensor), tensor));
    }

    /** Of a folder with a head all is taken but that. */
    @ParameterizedTest
    @ValueSource(strings = {"token-dropout", "sequences", "tokens", "nv-padded"})
    void leavesHeadsOut(String name) {
        StoredModel stored = new StoredModel(name);
        try (Device device = Device.open();
                Esm2Base model = Esm2Checkpoint.openBase(device, stored.folder(), DType.FLOAT32, 64);
                Pass pass = Pass.evaluation(device)) {
            assertEquals(64, model.config().context());
            assertEquals(Pooler.NONE, model.pooler());
            Map<String, float[]> vectors = stored.vectors();
            if (vectors.containsKey("hidden")) {
                pass.begin();
                pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
                Tensor hidden = model.hidden(HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass), pass);
                HuggingFaceEsm2Test.assertClose(
                        "hidden",
                        HuggingFaceEsm2Test.vector(vectors, "hidden"),
                        hidden.toFloats(device.stream()),
                        10 * TOLERANCE);
            }
        }
    }

    @Test
    void aClassifierBeginsWithIt() {
        StoredModel stored = new StoredModel("base-pooler");
        var config = new Esm2ClassifierConfig(Esm2Checkpoint.config(stored.folder()), Task.SEQUENCES, 3);
        try (Device device = Device.open();
                Esm2Classifier model = new Esm2Classifier(device, config, DType.FLOAT32, 1)) {
            Esm2Checkpoint.load(model, stored.folder());
            assertArrayEquals(
                    StoredModel.floats(stored.folder().resolve("model.safetensors"))
                            .get("encoder.layer.0.output.dense.bias"),
                    model.parameters().get("layers.0.mlp.fc2.bias").weight().toFloats(device.stream()));
            String text = assertThrows(
                            CheckpointException.class, () -> Models.open(device, stored.folder(), DType.FLOAT32))
                    .getMessage();
            assertEquals(
                    stored.folder().resolve("config.json")
                            + ": field architectures: expected a model with a loss; Esm2Checkpoint.openBase opens this one,"
                            + " got [EsmModel]",
                    text);
        }
    }
}
