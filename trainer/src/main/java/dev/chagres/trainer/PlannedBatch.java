package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.Provider;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * What a micro-batch must have for attention to use a certain plan of cuDNN's, which is built when it is first used.
 *
 * <p>Threading: immutable.
 *
 * @param longest tokens of the longest sequence
 * @param sequences how many there are
 */
record PlannedBatch(int longest, int sequences) {
    /** Batches that are drawn to see which plans the data will ask for. */
    private static final int DRAWN = 256;

    /** Transformer Engine has one plan for up to so many packed sequences, then one for each power of two of them. */
    private static final int LEAST_SEQUENCES = 32;

    /**
     * Returns a micro-batch for each plan that data like {@code example} asks for: one of each planned length with as many sequences, half
     * as many and a quarter more, and what else comes up where lengths are drawn from those of the example.
     */
    static List<PlannedBatch> of(Device device, DType dtype, BatchShape shape, MicroBatch example) {
        return of(PlannedLengths.of(device, dtype, shape), shape, example);
    }

    /** The same for {@code lengths} of the longest sequence. */
    static List<PlannedBatch> of(int[] lengths, BatchShape shape, MicroBatch example) {
        if (lengths.length == 1) {
            return List.of(of(lengths[0], example.realSequences(), shape, example));
        }
        int count = example.realSequences();
        Set<PlannedBatch> plans = new LinkedHashSet<>();
        for (int longest : lengths) {
            plans.add(of(longest, count, shape, example).rounded());
            // Other batches have fewer and longer sequences, or a few more.
            plans.add(of(longest, count / 2, shape, example).rounded());
            plans.add(of(longest, count + count / 4, shape, example).rounded());
        }
        addDrawn(shape, example, plans);
        return List.copyOf(plans);
    }

    /**
     * Returns how many tokens the micro-batch has: the most that may be packed, so that no batch of the data needs more memory than it. Memory
     * that grows later is allocated in one step and put together in the next, 0.15 s each where it is 45 GB.
     */
    private static int tokens(BatchShape shape, MicroBatch example) {
        return shape.layout() == BatchLayout.PACKED ? shape.tokensPerMicroBatch() : example.tokens();
    }

    /** Returns one with so many sequences, or more where the example's tokens need more of this length. */
    private static PlannedBatch of(int longest, int count, BatchShape shape, MicroBatch example) {
        int least = (tokens(shape, example) + longest - 1) / longest;
        return new PlannedBatch(longest, Math.max(count, least));
    }

    private static void addDrawn(BatchShape shape, MicroBatch example, Set<PlannedBatch> plans) {
        int[] offsets = example.cuSeqlens();
        var random = new SplittableRandom(1);
        for (int i = 0; i < DRAWN; i++) {
            int longest = 0;
            int sequences = 0;
            int end = 0;
            while (true) {
                int drawn = random.nextInt(example.realSequences());
                int length = offsets[drawn + 1] - offsets[drawn];
                if (end + length > shape.tokensPerMicroBatch()) {
                    break;
                }
                end += length;
                longest = Math.max(longest, length);
                sequences++;
            }
            if (sequences > 0) {
                int planned = Math.min(shape.context(), PlannedLengths.roundUp(longest));
                plans.add(new PlannedBatch(planned, sequences).rounded());
                // A step that is captured may have one of padding more.
                plans.add(new PlannedBatch(planned, sequences + 1).rounded());
            }
        }
    }

    private PlannedBatch rounded() {
        int power = Integer.highestOneBit(Math.max(1, sequences - 1)) << 1;
        return new PlannedBatch(longest, Math.max(LEAST_SEQUENCES, power));
    }

    /** Fills {@code batch} for this plan with sequences like those of {@code example}; {@code padding}: the id of padding tokens. */
    void fill(Batch batch, MicroBatch example, int padding) {
        var made = new SyntheticSequences(tokens(batch.shape(), example), sequences, longest);
        new SequencePacker(batch.shape(), made.like(example, padding)).fill(batch);
    }

    /**
     * For which longest sequences attention has a plan each, that is built when it is first used.
     *
     * <p>Threading: immutable.
     */
    private static final class PlannedLengths {
        /** cuDNN's plans are made for a longest sequence rounded up to a multiple of this. */
        private static final int MULTIPLE = 128;

        private PlannedLengths() {}

        /** Returns the length of the longest sequences that share a plan with those of {@code longest} tokens. */
        static int roundUp(int longest) {
            return (longest + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
        }

        /** Returns the lengths for each of which cuDNN builds a plan: of packed batches each multiple of 128 up to the context. */
        static int[] of(Device device, DType dtype, BatchShape shape) {
            boolean planned = device.provider() == Provider.CUDA && dtype != DType.FLOAT32;
            if (!planned || shape.layout() == BatchLayout.PADDED) {
                return new int[] {shape.context()};
            }
            int[] lengths = new int[(shape.context() + MULTIPLE - 1) / MULTIPLE];
            for (int i = 0; i < lengths.length; i++) {
                lengths[i] = Math.min(shape.context(), (i + 1) * MULTIPLE);
            }
            return lengths;
        }
    }

    /**
     * Sequences for a warm-up: as many, and as many tokens in all, as in a micro-batch of the data or as chosen, but the longest of a
     * chosen length. Each is one token over and over, the first of them labelled.
     *
     * <p>Threading: one thread at a time.
     */
    static final class SyntheticSequences implements TokenSequences {
        private final int longest;
        private int tokensLeft;
        private int sequencesLeft;
        private int length;
        private int id;
        private int label;
        private int padding;

        /**
         * Makes up sequences.
         *
         * @param tokens of all together, where so many sequences have as many
         * @param sequences how many, more where so many tokens need more
         * @param longest tokens of the longest one
         */
        SyntheticSequences(int tokens, int sequences, int longest) {
            this.longest = longest;
            sequencesLeft = Math.max(sequences, (tokens + longest - 1) / longest);
            tokensLeft = Math.max(tokens, longest + sequencesLeft - 1);
        }

        /** Takes id and label of the first token of {@code example} that has a label, and the id of padding tokens. */
        SyntheticSequences like(MicroBatch example, int newPadding) {
            int labelled = 0;
            while (labelled < example.paddedTokens() - 1 && example.labels()[labelled] == Batch.IGNORED) {
                labelled++;
            }
            id = example.ids()[labelled];
            label = example.labels()[labelled];
            padding = newPadding;
            return this;
        }

        @Override
        public boolean advance() {
            if (sequencesLeft == 0) {
                return false;
            }
            // The first is the longest; what it leaves is spread evenly.
            length = length == 0 ? longest : (tokensLeft + sequencesLeft - 1) / sequencesLeft;
            tokensLeft -= length;
            sequencesLeft--;
            return true;
        }

        @Override
        public int length() {
            return length;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            for (int i = start; i < start + count; i++) {
                ids[i] = id;
                labels[i] = Batch.IGNORED;
            }
            labels[start] = label;
            return label == Batch.IGNORED ? 0 : 1;
        }

        @Override
        public int padding() {
            return padding;
        }

        @Override
        public void close() {}
    }
}
