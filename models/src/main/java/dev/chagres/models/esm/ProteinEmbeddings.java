package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.pass.Pass;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/**
 * What an ESM-2 knows of proteins: the average of a protein's hidden states, and the states of each residue.
 *
 * <p>Proteins of a call are packed into one batch; a long list is given in pieces by the caller. Each gets {@code <cls>} before and {@code
 * <eos>} behind it, whose states do not count.
 *
 * <p>Threading: the device's thread.
 */
public final class ProteinEmbeddings implements AutoCloseable {
    private final Esm2 model;
    private final Pass pass;

    /**
     * Reads from {@code model}, which stays the caller's.
     *
     * @param model on one rank
     */
    public ProteinEmbeddings(Esm2 model) {
        this.model = Objects.requireNonNull(model, "model");
        pass = Pass.evaluation(model.parameters().scope().stream());
    }

    /**
     * Returns the mean of the hidden states of each protein's residues, H numbers a protein; it waits for the device.
     *
     * @param proteins letters of residues, such as {@code MKTAYIAKQR}, upper or lower case, at least one each
     * @throws IllegalArgumentException when a protein has no letter, one that ESM-2 has no token of, or more than the model's context
     *     less 2
     */
    public List<float[]> mean(List<String> proteins) {
        List<float[]> means = new ArrayList<>();
        for (float[][] residues : residues(proteins)) {
            double[] sum = new double[model.config().hidden()];
            for (float[] residue : residues) {
                for (int i = 0; i < sum.length; i++) {
                    sum[i] += residue[i];
                }
            }
            float[] mean = new float[sum.length];
            for (int i = 0; i < sum.length; i++) {
                mean[i] = (float) (sum[i] / residues.length);
            }
            means.add(mean);
        }
        return means;
    }

    /**
     * Returns the hidden states of each protein's residues, H numbers a residue; it waits for the device.
     *
     * @param proteins as for {@link #mean}
     * @throws IllegalArgumentException as {@link #mean}
     */
    public List<float[][]> residues(List<String> proteins) {
        List<int[]> tokens = new ArrayList<>();
        for (int i = 0; i < proteins.size(); i++) {
            tokens.add(tokens(i, proteins.get(i)));
        }
        if (tokens.isEmpty()) {
            return List.of();
        }
        float[] states = states(tokens);
        int hidden = model.config().hidden();
        List<float[][]> all = new ArrayList<>();
        int row = 0;
        for (int[] protein : tokens) {
            float[][] residues = new float[protein.length - 2][];
            for (int i = 0; i < residues.length; i++) {
                int begin = (row + 1 + i) * hidden;
                residues[i] = Arrays.copyOfRange(states, begin, begin + hidden);
            }
            all.add(residues);
            row += protein.length;
        }
        return all;
    }

    private float[] states(List<int[]> tokens) {
        int[] lengths = tokens.stream().mapToInt(protein -> protein.length).toArray();
        int[] ids = tokens.stream().flatMapToInt(Arrays::stream).toArray();
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor batch = pass.scope().tensor(DType.INT32, ids.length);
        batch.set(pass.stream(), ids);
        return model.hidden(batch, pass).toFloats(pass.stream());
    }

    private int[] tokens(int index, String protein) {
        byte[] letters = protein.getBytes(StandardCharsets.UTF_8);
        int most = model.config().context() - 2;
        if (letters.length < 1 || letters.length > most) {
            throw new IllegalArgumentException("proteins: expected 1 to " + most + " residues each, got "
                    + letters.length + " in number " + index);
        }
        int[] tokens = new int[letters.length + 2];
        tokens[0] = EsmVocabulary.CLS;
        for (int i = 0; i < letters.length; i++) {
            tokens[i + 1] = EsmVocabulary.residueToken(letters[i]);
            if (tokens[i + 1] < 0) {
                throw new IllegalArgumentException("proteins: expected letters of residues, got "
                        + (letters[i] > ' ' && letters[i] < 127
                                ? "'" + (char) letters[i] + "'"
                                : "byte " + (letters[i] & 0xff))
                        + " at " + i + " in number " + index);
            }
        }
        tokens[tokens.length - 1] = EsmVocabulary.EOS;
        return tokens;
    }

    /** Frees the memory of the calls; the model stays. */
    @Override
    public void close() {
        pass.close();
    }
}
