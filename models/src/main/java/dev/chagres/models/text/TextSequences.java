package dev.chagres.models.text;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.SplittableRandom;

/**
 * Sequences of the texts of files, endlessly, each time in another order. Each token's label is the one that follows it.
 *
 * <p>A file whose name ends with {@code .jsonl} has an object a line: {@code {"text": …}}, or {@code {"prompt": …, "completion": …}}, of which
 * the completion alone is learned. Any other file is one text in UTF-8. A text longer than the context becomes several sequences, the last
 * label of one being the first token of the next. Of a prompt and its completion that are longer together, the end is cut off. What has no
 * label is left out, and counted.
 *
 * <p>Prompt and completion are made into tokens each by itself, so that both are the same when text is generated. All tokens are held in
 * memory, 4 bytes each.
 *
 * <p>Threading: one thread at a time.
 */
public final class TextSequences implements TokenSequences {
    private final TextConfig config;
    /** Those of all texts, one behind another. */
    private int[] tokens = new int[1024];

    private int tokenCount;
    /** By sequence: its first token, its length, the first token that is learned, and the end of its text. */
    private int[] starts = new int[64];

    private int[] lengths = new int[64];
    private int[] learnedFrom = new int[64];
    private int[] ends = new int[64];
    private int count;
    private long leftOut;

    private final int[] order;
    private long epoch = -1;
    private int next;
    private int current;

    private TextSequences(List<Path> files, Tokenizer tokenizer, TextConfig config) {
        this.config = config;
        for (Path file : files) {
            TextFile.read(file, (prompt, text) -> add(file, tokenizer, prompt, text));
        }
        if (count == 0) {
            throw new IllegalArgumentException("files: expected a text of two tokens or more, got none in " + files
                    + ", and " + leftOut + " with fewer");
        }
        order = new int[count];
        next = count;
    }

    /**
     * Reads all files.
     *
     * @param files text files and files of JSON Lines
     * @param tokenizer stays the caller's, and is not used later
     * @throws TextException when a file cannot be read, or a line is not what it should be
     * @throws IllegalArgumentException when no file has a text of two tokens or more
     */
    public static TextSequences read(List<Path> files, Tokenizer tokenizer, TextConfig config) {
        Objects.requireNonNull(tokenizer, "tokenizer");
        return new TextSequences(List.copyOf(files), tokenizer, Objects.requireNonNull(config, "config"));
    }

    /** {@code prompt}: empty where there is none. */
    private void add(Path file, Tokenizer tokenizer, String prompt, String text) {
        int first = tokenCount;
        int learned = first;
        if (prompt.isEmpty()) {
            append(file, tokenizer.encode(text));
        } else {
            append(file, tokenizer.encode(prompt));
            learned = tokenCount;
            append(file, tokenizer.encodeInside(text));
        }
        if (config.end().isPresent()) {
            append(file, config.end().get());
        }
        int length = prompt.isEmpty() ? tokenCount - first : Math.min(config.context(), tokenCount - first);
        tokenCount = first + length;
        for (int start = first; start < tokenCount; start += config.context()) {
            addSequence(start, Math.min(config.context(), tokenCount - start), learned);
        }
    }

    private void append(Path file, int... more) {
        if (tokenCount > Integer.MAX_VALUE - 8 - more.length) {
            throw new TextException(file, "expected fewer than 2^31 tokens in all files, got more", null);
        }
        if (tokenCount + more.length > tokens.length) {
            long doubled = Math.min(Integer.MAX_VALUE - 8L, 2L * tokens.length);
            tokens = Arrays.copyOf(tokens, (int) Math.max(tokenCount + more.length, doubled));
        }
        System.arraycopy(more, 0, tokens, tokenCount, more.length);
        tokenCount += more.length;
    }

    private void addSequence(int start, int length, int learned) {
        if (Math.min(start + length, tokenCount - 1) < Math.max(learned, start + 1)) {
            leftOut++;
            return;
        }
        if (count == starts.length) {
            starts = Arrays.copyOf(starts, 2 * count);
            lengths = Arrays.copyOf(lengths, 2 * count);
            learnedFrom = Arrays.copyOf(learnedFrom, 2 * count);
            ends = Arrays.copyOf(ends, 2 * count);
        }
        starts[count] = start;
        lengths[count] = length;
        learnedFrom[count] = learned;
        ends[count] = tokenCount;
        count++;
    }

    /** Returns how many sequences there are. */
    public int count() {
        return count;
    }

    /** Returns how many sequences were left out, for nothing of them is learned: single tokens, and prompts as long as the context. */
    public long leftOut() {
        return leftOut;
    }

    /** Returns how often all sequences have come, the current one in its turn not counted. */
    public long epoch() {
        return Math.max(0, epoch);
    }

    @Override
    public boolean advance() {
        if (next == count) {
            epoch++;
            shuffle();
            next = 0;
        }
        current = order[next++];
        return true;
    }

    private void shuffle() {
        SplittableRandom random = new SplittableRandom(config.seed() + 0x9e3779b97f4a7c15L * epoch);
        for (int i = 0; i < count; i++) {
            int other = random.nextInt(i + 1);
            order[i] = order[other];
            order[other] = i;
        }
    }

    @Override
    public int length() {
        return lengths[current];
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int written) {
        int labelled = 0;
        int from = starts[current];
        for (int i = 0; i < written; i++) {
            int token = from + i;
            ids[start + i] = tokens[token];
            boolean isLearned = token + 1 < ends[current] && token + 1 >= learnedFrom[current];
            labels[start + i] = isLearned ? tokens[token + 1] : Batch.IGNORED;
            labelled += isLearned ? 1 : 0;
        }
        return labelled;
    }
}
