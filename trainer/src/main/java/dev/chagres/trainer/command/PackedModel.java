package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiFunction;

/**
 * An ESM-2 that computes packed sequences of tokens, and brings the result to the host.
 *
 * <p>Threading: the device's thread.
 */
final class PackedModel implements AutoCloseable {
    private final BiFunction<Tensor, Pass, Tensor> model;
    private final Pass pass;

    private PackedModel(BiFunction<Tensor, Pass, Tensor> model, Parameters parameters) {
        this.model = model;
        pass = Pass.evaluation(parameters.scope().stream());
    }

    /** Returns one that computes the states behind the last norm, H numbers a token. */
    static PackedModel hidden(Esm2Base model) {
        return new PackedModel(model::hidden, model.parameters());
    }

    /** Returns one that computes the scores of each token, {@link EsmVocabulary#PADDED_SIZE} numbers a token, of which 33 count. */
    static PackedModel logits(Esm2 model) {
        return new PackedModel(model::logits, model.parameters());
    }

    float[] compute(List<int[]> sequences) {
        return model.apply(begin(sequences), pass).toFloats(pass.stream());
    }

    private Tensor begin(List<int[]> sequences) {
        int[] ids = sequences.stream().flatMapToInt(Arrays::stream).toArray();
        pass.begin();
        pass.sequences(Sequences.packed(
                pass.scope(), sequences.stream().mapToInt(one -> one.length).toArray()));
        Tensor batch = pass.scope().tensor(DType.INT32, ids.length);
        batch.set(pass.stream(), ids);
        return batch;
    }

    /** Returns the tokens of residues, between {@code <cls>} and {@code <eos>}. */
    static int[] tokens(byte[] residues, int begin, int count) {
        int[] tokens = new int[count + 2];
        tokens[0] = EsmVocabulary.CLS;
        for (int i = 0; i < count; i++) {
            tokens[i + 1] = EsmVocabulary.residueToken(residues[begin + i]);
        }
        tokens[count + 1] = EsmVocabulary.EOS;
        return tokens;
    }

    /** Frees the memory of the calls; the model stays. */
    @Override
    public void close() {
        pass.close();
    }
}
