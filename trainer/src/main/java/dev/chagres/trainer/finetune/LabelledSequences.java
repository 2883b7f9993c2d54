package dev.chagres.trainer.finetune;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/**
 * Protein sequences with the labels that a batch has for them.
 *
 * <p>Threading: immutable.
 *
 * @param labels of each sequence one, or one of each residue
 */
record LabelledSequences(Task task, List<byte[]> sequences, List<int[]> labels) {
    /** Tokens of a sequence that are no residues. */
    static final int ENDS = 2;

    /** Opens them once, in the file's order. */
    TokenSequences once() {
        return new Epochs(this, 1, null);
    }

    /** Opens them several times, each time in another order. */
    TokenSequences epochs(int epochs, long seed) {
        return new Epochs(this, epochs, seed);
    }

    /** {@code <cls> residues <eos>}, of a sequence longer than the context its first residues. */
    private static final class Epochs implements TokenSequences {
        private final LabelledSequences data;
        private final int epochs;
        private final @Nullable Long seed;
        private final int[] order;
        private int epoch;
        private int next;
        private int current;

        Epochs(LabelledSequences data, int epochs, @Nullable Long seed) {
            this.data = data;
            this.epochs = epochs;
            this.seed = seed;
            order = new int[data.sequences().size()];
            Arrays.setAll(order, i -> i);
            shuffle();
        }

        private void shuffle() {
            if (seed == null) {
                return;
            }
            var random = new SplittableRandom(seed + 0x9E3779B97F4A7C15L * epoch);
            for (int i = order.length - 1; i > 0; i--) {
                int other = random.nextInt(i + 1);
                int swapped = order[i];
                order[i] = order[other];
                order[other] = swapped;
            }
        }

        @Override
        public boolean advance() {
            if (next == order.length) {
                epoch++;
                if (epoch >= epochs) {
                    epoch = epochs;
                    return false;
                }
                next = 0;
                shuffle();
            }
            current = order[next++];
            return true;
        }

        @Override
        public int length() {
            return data.sequences().get(current).length + ENDS;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            byte[] residues = data.sequences().get(current);
            int[] own = data.labels().get(current);
            int kept = count - ENDS;
            Arrays.fill(labels, start, start + count, Batch.IGNORED);
            ids[start] = EsmVocabulary.CLS;
            for (int i = 0; i < kept; i++) {
                ids[start + 1 + i] = EsmVocabulary.token(residues[i]);
            }
            ids[start + 1 + kept] = EsmVocabulary.EOS;
            if (data.task() == Task.SEQUENCES) {
                labels[start] = own[0];
                return 1;
            }
            System.arraycopy(own, 0, labels, start + 1, kept);
            return kept;
        }

        @Override
        public int padding() {
            return EsmVocabulary.PAD;
        }
    }
}
