package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Decoders that transformers wrote: their logits, hidden states, loss and gradients, against those that it computed. */
@Tag("L0")
@Tag("L1")
class HuggingFaceDecoderTest {
    /** TF32 operands of FP32 products move logits of these models by up to 1.3e-2 in transformers, too, and gradients by 9e-3. */
    static final double TOLERANCE = Provider.current() == Provider.CUDA ? 2e-2 : 1e-4;

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    void packedSequences(StoredModel stored) {
        Map<String, float[]> vectors = stored.vectors();
        try (Device device = Device.open();
                Decoder model = assertInstanceOf(Decoder.class, Models.open(device, stored.folder(), DType.FLOAT32));
                Pass pass = Pass.training(device)) {
            begin(stored, pass);
            Tensor logits = model.logits(ids(stored, pass), pass);
            HuggingFaceEsm2Test.assertClose(
                    "logits", HuggingFaceEsm2Test.vector(vectors, "logits"), used(model, logits, device), TOLERANCE);
            begin(stored, pass);
            Tensor hidden = model.hidden(ids(stored, pass), pass);
            HuggingFaceEsm2Test.assertClose(
                    "hidden",
                    HuggingFaceEsm2Test.vector(vectors, "hidden"),
                    hidden.toFloats(device.stream()),
                    TOLERANCE);
            float loss = loss(model, stored, pass);
            float expected = HuggingFaceEsm2Test.vector(vectors, "loss")[0];
            assertEquals(expected, loss, TOLERANCE * expected);
            HuggingFaceEsm2Test.compareGradients(
                    model.parameters(),
                    DecoderTensors.targets(model.config(), DecoderLayout.TRANSFORMERS),
                    vectors,
                    device,
                    TOLERANCE);
        }
    }

    /**
     * Logits of some tokens at a time: gradients are as near as before, and the loss has the same bits, but for kernels that a GPU's library
     * chooses by the number of rows.
     */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    void someLogitsAtATime(StoredModel stored) {
        Map<String, float[]> vectors = stored.vectors();
        DecoderConfig config = DecoderCheckpoint.config(stored.folder());
        Map<Integer, Float> losses = new HashMap<>();
        for (int tokens : new int[] {0, 80, 1, 7, 16, 79}) {
            try (Device device = Device.open();
                    Decoder model = new Decoder(device, config.withLossTokens(tokens), DType.FLOAT32, 3);
                    Pass pass = Pass.training(device)) {
                DecoderCheckpoint.load(model, stored.folder());
                losses.put(tokens, loss(model, stored, pass));
                HuggingFaceEsm2Test.compareGradients(
                        model.parameters(),
                        DecoderTensors.targets(config, DecoderLayout.TRANSFORMERS),
                        vectors,
                        device,
                        TOLERANCE);
                assertEquals(tokens == 0 || tokens >= 80, model.scores() != null);
            }
        }
        if (Provider.current() == Provider.REFERENCE) {
            assertEquals(1, losses.values().stream().distinct().count(), losses.toString());
        }
        losses.forEach((tokens, loss) -> assertEquals(losses.get(0), loss, TOLERANCE * loss, losses.toString()));
    }

    /** Padding changes nothing: sequences of their own lengths in places of the longest. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    void paddedSequences(StoredModel stored) {
        int[] lengths = stored.ints("lengths");
        int longest = Arrays.stream(lengths).max().orElseThrow();
        int[] ids = stored.ints("ids");
        int[] padded = new int[lengths.length * longest];
        int token = 0;
        for (int b = 0; b < lengths.length; b++) {
            System.arraycopy(ids, token, padded, b * longest, lengths[b]);
            token += lengths[b];
        }
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.padded(QkvFormat.BSHD, CuSeqlens.ofLengths(pass.scope(), lengths), longest));
            float[] all = used(model, model.logits(HuggingFaceEsm2Test.tensor(padded, pass), pass), device);
            int vocabulary = model.config().sizes().vocabulary();
            float[] actual = new float[ids.length * vocabulary];
            int row = 0;
            for (int b = 0; b < lengths.length; b++) {
                System.arraycopy(all, b * longest * vocabulary, actual, row * vocabulary, lengths[b] * vocabulary);
                row += lengths[b];
            }
            HuggingFaceEsm2Test.assertClose(
                    "logits", HuggingFaceEsm2Test.vector(stored.vectors(), "logits"), actual, TOLERANCE);
        }
    }

    /** The second step makes as many objects on the device as the first, and the same numbers. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    void repeats(StoredModel stored) {
        DecoderConfig config = DecoderCheckpoint.config(stored.folder());
        try (Device device = Device.open();
                Decoder model = new Decoder(
                        device, config.withLossTokens(9).withRecomputation(Recomputation.LAYERS), DType.BFLOAT16, 3);
                Pass pass = Pass.training(device)) {
            float first = loss(model, stored, pass);
            float[] gradient =
                    model.parameters().get("embedding.weight").gradient().toFloats(device.stream());
            model.parameters().nextStep();
            assertEquals(first, loss(model, stored, pass));
            assertArrayEquals(
                    gradient,
                    model.parameters().get("embedding.weight").gradient().toFloats(device.stream()));
            assertTrue(first > 3 && first < 5, "about the logarithm of 51, got " + first);
        }
    }

    static float loss(Decoder model, StoredModel stored, Pass pass) {
        begin(stored, pass);
        Tensor labels = HuggingFaceEsm2Test.tensor(stored.ints("labels"), pass);
        Tensor loss = model.loss(ids(stored, pass), labels, pass);
        model.backward(1, pass);
        return loss.toFloats(pass.stream())[0];
    }

    static void begin(StoredModel stored, Pass pass) {
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
    }

    static Tensor ids(StoredModel stored, Pass pass) {
        return HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass);
    }

    /** The columns that count. */
    static float[] used(Decoder model, Tensor logits, Device device) {
        int columns = model.config().sizes().paddedVocabulary();
        int vocabulary = model.config().sizes().vocabulary();
        float[] all = logits.toFloats(device.stream());
        int rows = Math.toIntExact(logits.size(0));
        float[] used = new float[rows * vocabulary];
        for (int row = 0; row < rows; row++) {
            System.arraycopy(all, row * columns, used, row * vocabulary, vocabulary);
        }
        return used;
    }
}
