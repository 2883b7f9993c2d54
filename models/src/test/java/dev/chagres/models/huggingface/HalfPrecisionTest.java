package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.esm.Esm2;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * In BF16 a model is as near to transformers in FP32 as transformers in BF16 is, and so is its loss: random weights, on a GPU the shapes of
 * ESM-2 650M, Llama-3.2-1B and Qwen3-0.6B. Runs only with {@code -Dchagres.test.transformers=PYTHON}, which has that package.
 */
@Tag("transformers")
class HalfPrecisionTest {
    private static final boolean PUBLISHED = Provider.current() == Provider.CUDA;

    @TempDir
    Path parent;

    @ParameterizedTest
    @ValueSource(strings = {"esm", "llama", "qwen3"})
    void logitsAndLoss(String kind) throws IOException, InterruptedException {
        Path folder = parent.resolve(kind);
        Path output = parent.resolve("logits.safetensors");
        TransformersPython.run(parent, "half_precision.py", kind, PUBLISHED ? "published" : "small", folder, output);
        var vectors = StoredModel.floats(output);
        int[] ids = StoredModel.ints(output, "ids");
        int[] labels = StoredModel.ints(output, "labels");
        float[] whole = HuggingFaceEsm2Test.vector(vectors, "whole");
        float[] half = HuggingFaceEsm2Test.vector(vectors, "half");
        float[] own = logits(kind, folder, ids, StoredModel.ints(output, "lengths"));
        assertEquals(whole.length, own.length);
        double ours = distance(own, whole);
        double theirs = distance(half, whole);
        double loss = loss(whole, labels);
        String told = String.format(
                "%s: logits %.5f off, transformers in BF16 %.5f; loss %.6f, ours %.6f, transformers in BF16 %.6f",
                kind, ours, theirs, loss, loss(own, labels), loss(half, labels));
        System.out.println(told);
        assertTrue(ours <= theirs, told);
        assertEquals(loss, loss(own, labels), 1e-3 * loss, told);
    }

    private static float[] logits(String kind, Path folder, int[] ids, int[] lengths) {
        try (Device device = Device.open();
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            var tokens = HuggingFaceEsm2Test.tensor(ids, pass);
            if (kind.equals("esm")) {
                try (Esm2 model = Esm2Checkpoint.open(device, folder, DType.BFLOAT16)) {
                    return HuggingFaceEsm2Test.used(model.logits(tokens, pass), device);
                }
            }
            try (Decoder model = DecoderCheckpoint.open(device, folder, DType.BFLOAT16)) {
                return HuggingFaceDecoderTest.used(model, model.logits(tokens, pass), device);
            }
        }
    }

    /** Returns the norm of the difference by that of what was expected. */
    private static double distance(float[] actual, float[] expected) {
        double difference = 0;
        double norm = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow((double) actual[i] - expected[i], 2);
            norm += Math.pow(expected[i], 2);
        }
        return Math.sqrt(difference / norm);
    }

    /** Returns the mean cross-entropy of the labels that are not negative. */
    private static double loss(float[] logits, int[] labels) {
        int columns = logits.length / labels.length;
        double sum = 0;
        int count = 0;
        for (int row = 0; row < labels.length; row++) {
            if (labels[row] >= 0) {
                double exponentials = 0;
                for (int i = 0; i < columns; i++) {
                    exponentials += Math.exp(logits[row * columns + i]);
                }
                sum += Math.log(exponentials) - logits[row * columns + labels[row]];
                count++;
            }
        }
        return sum / count;
    }
}
