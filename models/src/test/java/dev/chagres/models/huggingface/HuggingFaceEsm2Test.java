package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.ProteinEmbeddings;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Models that transformers wrote: their logits, loss and gradients, against those that it computed. */
@Tag("L0")
@Tag("L1")
class HuggingFaceEsm2Test {
    /** FP32 both; products on CUDA run as TF32, with 11 bits. */
    static final double TOLERANCE = Provider.current() == Provider.CUDA ? 5e-3 : 1e-4;

    /** Of logits alone, whose difference from those of transformers is that of sums in another order. */
    static final double SAME = Provider.current() == Provider.CUDA ? TOLERANCE : 1e-5;

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void packedSequences(StoredModel stored) {
        Map<String, float[]> vectors = stored.vectors();
        try (Device device = Device.open();
                Esm2 model = assertInstanceOf(Esm2.class, Models.open(device, stored.folder(), DType.FLOAT32));
                Pass pass = Pass.training(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            Tensor ids = tensor(stored.ints("ids"), pass);
            Tensor logits = model.logits(ids, pass);
            assertClose("logits", vector(vectors, "logits"), used(logits, device), TOLERANCE);
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            ids = tensor(stored.ints("ids"), pass);
            Tensor loss = model.loss(ids, tensor(stored.ints("labels"), pass), pass);
            model.backward(1, pass);
            assertEquals(vector(vectors, "loss")[0], loss.toFloats(device.stream())[0], TOLERANCE);
            compareGradients(model.parameters(), Esm2Tensors.targets(model.config()), vectors, device);
        }
    }

    /** The states behind the last norm, also of each protein by itself. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void hiddenStates(StoredModel stored) {
        float[] expected = vector(stored.vectors(), "hidden");
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device);
                ProteinEmbeddings embeddings = new ProteinEmbeddings(model)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            Tensor hidden = model.hidden(tensor(stored.ints("ids"), pass), pass);
            assertClose("hidden", expected, hidden.toFloats(device.stream()), TOLERANCE);
            // The third has no mask: residues of the alphabet alone.
            int[] lengths = stored.ints("lengths");
            int first = lengths[0] + lengths[1];
            StringBuilder protein = new StringBuilder();
            for (int i = 1; i < lengths[2] - 1; i++) {
                protein.append(EsmVocabulary.tokens().get(stored.ints("ids")[first + i]));
            }
            int columns = model.config().hidden();
            float[] mean = new float[columns];
            for (int i = 1; i < lengths[2] - 1; i++) {
                for (int c = 0; c < columns; c++) {
                    mean[c] += expected[(first + i) * columns + c] / (lengths[2] - 2);
                }
            }
            List<float[]> means = embeddings.mean(List.of("MKT", protein.toString()));
            assertClose("mean", mean, means.get(1), 2 * TOLERANCE);
            assertEquals(3, embeddings.residues(List.of("mkt")).getFirst().length);
            assertEquals(List.of(), embeddings.mean(List.of()));
            assertEquals(
                    "proteins: expected letters of residues, got '*' at 1 in number 1",
                    assertThrows(IllegalArgumentException.class, () -> embeddings.mean(List.of("M", "M*")))
                            .getMessage());
            assertEquals(
                    "proteins: expected 1 to 1024 residues each, got 0 in number 0",
                    assertThrows(IllegalArgumentException.class, () -> embeddings.mean(List.of("")))
                            .getMessage());
        }
    }

    /** Padding changes nothing: sequences of their own lengths in places of the longest. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void paddedSequences(StoredModel stored) {
        float[] expected = vector(stored.vectors(), "logits");
        int[] lengths = stored.ints("lengths");
        int longest = Arrays.stream(lengths).max().orElseThrow();
        int[] ids = stored.ints("ids");
        int[] padded = new int[lengths.length * longest];
        Arrays.fill(padded, EsmVocabulary.PAD);
        int token = 0;
        for (int b = 0; b < lengths.length; b++) {
            System.arraycopy(ids, token, padded, b * longest, lengths[b]);
            token += lengths[b];
        }
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.padded(QkvFormat.BSHD, CuSeqlens.ofLengths(pass.scope(), lengths), longest));
            float[] all = used(model.logits(tensor(padded, pass), pass), device);
            float[] actual = new float[expected.length];
            int row = 0;
            for (int b = 0; b < lengths.length; b++) {
                int count = lengths[b] * EsmVocabulary.SIZE;
                System.arraycopy(all, b * longest * EsmVocabulary.SIZE, actual, row, count);
                row += count;
            }
            assertClose("logits", expected, actual, TOLERANCE);
        }
    }

    static void compareGradients(
            Parameters parameters, List<Target> targets, Map<String, float[]> vectors, Device device) {
        compareGradients(parameters, targets, vectors, device, TOLERANCE);
    }

    /** Compares the gradients of all parameters by norm. */
    static void compareGradients(
            Parameters parameters,
            List<Target> targets,
            Map<String, float[]> vectors,
            Device device,
            double tolerance) {
        Map<String, float[]> left = new HashMap<>(vectors);
        left.keySet().removeIf(name -> !name.startsWith("gradient."));
        Set<String> seen = new HashSet<>();
        for (Target target : targets) {
            Parameter parameter = parameters.get(target.parameter());
            float[] gradient = parameter.gradient().toFloats(device.stream());
            int first = 0;
            for (Target.Part part : target.parts()) {
                int count = Math.toIntExact(part.count());
                float[] own = Arrays.copyOfRange(gradient, first, first + count);
                float[] expected = Objects.requireNonNull(left.remove("gradient." + part.tensor()), part.tensor());
                assertNear(part.tensor(), expected, own, tolerance);
                seen.add(part.tensor());
                first += count;
            }
        }
        assertEquals(Set.of(), left.keySet());
        assertTrue(seen.size() > 15);
    }

    /** A key's bias changes nothing but every score of a query alike: its gradient is 0 but for roundings. */
    private static void assertNear(String name, float[] expected, float[] actual, double tolerance) {
        double difference = 0;
        double norm = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow(expected[i] - actual[i], 2);
            norm += Math.pow(expected[i], 2);
        }
        double limit = tolerance * Math.sqrt(norm) + 1e-6;
        assertTrue(
                Math.sqrt(difference) <= limit,
                name + ": expected a norm of the difference of at most " + limit + ", got " + Math.sqrt(difference));
    }

    static void assertClose(String what, float[] expected, float[] actual, double tolerance) {
        assertEquals(expected.length, actual.length, what);
        double largest = 0;
        double difference = 0;
        for (int i = 0; i < expected.length; i++) {
            assertTrue(Float.isFinite(actual[i]), what + " are finite");
            largest = Math.max(largest, Math.abs(expected[i]));
            difference = Math.max(difference, Math.abs(expected[i] - actual[i]));
        }
        assertTrue(
                difference <= tolerance * largest,
                what + ": expected at most " + tolerance + " of the largest, " + largest + ", got " + difference);
    }

    /** The columns that count. */
    static float[] used(Tensor logits, Device device) {
        float[] all = logits.toFloats(device.stream());
        int rows = Math.toIntExact(logits.size(0));
        float[] used = new float[rows * EsmVocabulary.SIZE];
        for (int row = 0; row < rows; row++) {
            System.arraycopy(all, row * EsmVocabulary.PADDED_SIZE, used, row * EsmVocabulary.SIZE, EsmVocabulary.SIZE);
        }
        return used;
    }

    static Tensor tensor(int[] values, Pass pass) {
        Tensor tensor = pass.scope().tensor(DType.INT32, values.length);
        tensor.set(pass.stream(), values);
        return tensor;
    }

    static float[] vector(Map<String, float[]> vectors, String name) {
        return Objects.requireNonNull(vectors.get(name), name);
    }
}
