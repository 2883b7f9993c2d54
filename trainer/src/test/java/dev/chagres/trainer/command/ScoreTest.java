package dev.chagres.trainer.command;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class ScoreTest {
    /** Of a logarithm; the command computes in BF16 on CUDA. */
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 1e-2 : 2.5e-6;

    @TempDir
    private Path temporary;

    private SmallModel model;
    private Path output;

    @BeforeEach
    void makeModel() throws IOException {
        model = new SmallModel(temporary);
        output = temporary.resolve("s.jsonl");
    }

    /** Returns log p(token) at a masked place of the first protein, by a sequence alone. */
    private double log(int token, int place, int... masked) {
        byte[] residues = SmallModel.PROTEINS.getFirst().getBytes(StandardCharsets.US_ASCII);
        int[] tokens = PackedModel.tokens(residues, 0, residues.length);
        for (int one : masked) {
            tokens[one] = EsmVocabulary.MASK;
        }
        try (Device device = Device.open();
                Esm2 opened = Esm2Checkpoint.open(device, model.folder(), DType.FLOAT32);
                PackedModel packed = PackedModel.logits(opened, null)) {
            float[] logits = packed.compute(List.of(tokens));
            double sum = 0;
            for (int i = 0; i < EsmVocabulary.SIZE; i++) {
                sum += Math.exp(logits[place * EsmVocabulary.PADDED_SIZE + i]);
            }
            return logits[place * EsmVocabulary.PADDED_SIZE + token] - Math.log(sum);
        }
    }

    private static int token(char letter) {
        return EsmVocabulary.residueToken((byte) letter);
    }

    private Map<String, Object> line(int number) throws IOException {
        return JSON.std.mapFrom(Files.readAllLines(output).get(number));
    }

    @Test
    void eachResidueIsMaskedAlone() throws IOException {
        String[] options = {"--fasta=" + model.fasta(), "--out=" + output, "--long=cut", "--batch-tokens=60"};
        assertEquals(0, model.run(Score::run, options), model::told);
        String first = SmallModel.PROTEINS.getFirst();
        double sum = 0;
        for (int i = 0; i < first.length(); i++) {
            sum += log(token(first.charAt(i)), i + 1, i + 1);
        }
        assertEquals(5, Files.readAllLines(output).size());
        assertEquals(sum, (double) line(0).get("logLikelihood"), first.length() * TOLERANCE);
        assertEquals(Math.exp(-sum / first.length()), (double) line(0).get("pseudoPerplexity"), 20 * TOLERANCE);
        assertEquals("P1 64 32", line(1).get("id") + " " + line(1).get("residues") + " " + line(1).get("taken"));
    }

    @Test
    void placesOfAMutantAreMaskedTogether() throws IOException {
        Path mutations = temporary.resolve("m.txt");
        Files.writeString(mutations, "# mutants\nP0 K2A:A4W\nP2\tC2G\n");
        String[] options = {"--fasta=" + model.fasta(), "--out=" + output, "--long=cut", "--mutations=" + mutations};
        assertEquals(0, model.run(Score::run, options), model::told);
        double expected = log(token('A'), 2, 2, 4)
                - log(token('K'), 2, 2, 4)
                + log(token('W'), 4, 2, 4)
                - log(token('A'), 4, 2, 4);
        assertEquals("P0 K2A:A4W", line(0).get("id") + " " + line(0).get("mutation"));
        assertEquals(expected, (double) line(0).get("score"), 4 * TOLERANCE);
        assertEquals("P2 C2G", line(1).get("id") + " " + line(1).get("mutation"));
        assertEquals(expected, (double) line(2).get("score"), 4 * TOLERANCE);
    }

    @Test
    void wrongMutationsAreToldInOneLine() throws IOException {
        Path mutations = temporary.resolve("m.txt");
        String fasta = "--fasta=" + model.fasta();
        assertEquals(2, model.run(Score::run, fasta, "--mutation=42"));
        assertTrue(
                model.told().startsWith("score: --mutation: expected mutations such as A42G or A42G:K50R, got 42 ("),
                model::told);
        assertEquals(2, model.run(Score::run, fasta));
        assertTrue(
                model.told()
                        .startsWith(
                                "score: --long: expected cut, or a larger --context, for --context 34 has room for 32"
                                        + " residues and "),
                model::told);
        assertEquals(2, model.run(Score::run, fasta, "--long=windows"));
        assertTrue(model.told().startsWith("score: --long: expected refuse or cut, got windows ("), model::told);
        assertEquals(1, model.run(Score::run, fasta, "--long=cut", "--mutation=W1A"));
        assertEquals(
                "score: --mutation: expected W at 1 of P0, got M", model.told().strip());
        Map<String, String> texts = Map.of(
                "P2 A9G", "score: --mutations: expected A at 9 of P2, got a protein of 3 residues",
                "PX A9G", "score: --mutations: expected proteins of " + model.fasta() + ", got PX, which it lacks",
                "P2", "score: --mutations: " + mutations + ":1: expected ID MUTATION, got 1 words",
                "P2 A1G:A1W", "score: --mutations: " + mutations + ":1: expected each place once, got A1G:A1W");
        for (var text : texts.entrySet()) {
            Files.writeString(mutations, text.getKey());
            assertEquals(1, model.run(Score::run, fasta, "--long=cut", "--mutations=" + mutations));
            assertEquals(text.getValue(), model.told().strip());
        }
    }
}
