package dev.chagres.models.text;

import dev.chagres.batch.Batch;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.BitSet;
import java.util.SplittableRandom;

/**
 * Tokens of texts, cut into sequences: 4 bytes and a bit each. Each token's label is the one that follows it in its text, where that is learned.
 *
 * <p>Threading: one thread at a time; several once nothing is added.
 */
final class TokenizedTexts {
    private static final int MOST = Integer.MAX_VALUE - 8;

    /** Whether tokens are labels of those before them. */
    enum Learned {
        YES,
        NO
    }

    /** What becomes of a text longer than the context. */
    enum Longer {
        /** Several sequences. */
        DIVIDED,
        /** One, without the end of the text. */
        CUT
    }

    private final int context;
    private int[] tokens = new int[1024];
    private final BitSet learned = new BitSet();
    private int tokenCount;
    /** Where the text begins that is being added. */
    private int begun;

    /** By sequence: its first token, its length, the end of its text. */
    private int[] starts = new int[64];

    private int[] lengths = new int[64];
    private int[] ends = new int[64];
    private int count;
    private long leftOut;

    /** Makes none, for sequences of up to {@code context} tokens. */
    TokenizedTexts(int context) {
        this.context = context;
    }

    /** Forgets all texts, but not how many sequences were left out. */
    void clear() {
        tokenCount = 0;
        begun = 0;
        count = 0;
        learned.clear();
    }

    /** Returns how many tokens there are. */
    int tokens() {
        return tokenCount;
    }

    /** Returns how many sequences there are. */
    int count() {
        return count;
    }

    /** Returns how many sequences had no label, ever. */
    long leftOut() {
        return leftOut;
    }

    /** Adds tokens to a text of {@code file}. */
    void append(Path file, Learned kind, int... more) {
        if (tokenCount > MOST - more.length) {
            throw new TextException(file, "expected fewer than 2^31 tokens in all files, got more", null);
        }
        if (tokenCount + more.length > tokens.length) {
            long doubled = Math.min(MOST, 2L * tokens.length);
            tokens = Arrays.copyOf(tokens, (int) Math.max(tokenCount + more.length, doubled));
        }
        System.arraycopy(more, 0, tokens, tokenCount, more.length);
        learned.set(tokenCount, tokenCount + more.length, kind == Learned.YES);
        tokenCount += more.length;
    }

    /** Ends a text. */
    void end(Longer longer) {
        int length = longer == Longer.DIVIDED ? tokenCount - begun : Math.min(context, tokenCount - begun);
        tokenCount = begun + length;
        for (int start = begun; start < tokenCount; start += context) {
            add(start, Math.min(context, tokenCount - start));
        }
        begun = tokenCount;
    }

    private void add(int start, int length) {
        int label = learned.nextSetBit(start + 1);
        if (label < 0 || label > Math.min(start + length, tokenCount - 1)) {
            leftOut++;
            return;
        }
        if (count == starts.length) {
            starts = Arrays.copyOf(starts, 2 * count);
            lengths = Arrays.copyOf(lengths, 2 * count);
            ends = Arrays.copyOf(ends, 2 * count);
        }
        starts[count] = start;
        lengths[count] = length;
        ends[count] = tokenCount;
        count++;
    }

    /** Returns the numbers of all sequences. */
    int[] inOrder() {
        int[] order = new int[count];
        Arrays.setAll(order, i -> i);
        return order;
    }

    /** Returns the numbers of all sequences in an order that follows from the seed. */
    int[] shuffled(long seed) {
        var random = new SplittableRandom(seed);
        int[] order = new int[count];
        for (int i = 0; i < count; i++) {
            int other = random.nextInt(i + 1);
            order[i] = order[other];
            order[other] = i;
        }
        return order;
    }

    /** Returns how many tokens a sequence has. */
    int length(int sequence) {
        return lengths[sequence];
    }

    /** Writes {@code written} tokens of a sequence and their labels from {@code start} on, and returns how many labels there are. */
    int write(int sequence, int[] ids, int[] labels, int start, int written) {
        int labelled = 0;
        int from = starts[sequence];
        for (int i = 0; i < written; i++) {
            int label = from + i + 1;
            boolean isLearned = label < ends[sequence] && learned.get(label);
            ids[start + i] = tokens[label - 1];
            labels[start + i] = isLearned ? tokens[label] : Batch.IGNORED;
            labelled += isLearned ? 1 : 0;
        }
        return labelled;
    }
}
