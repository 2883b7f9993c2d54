package dev.chagres.models.text;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;

/**
 * Sequences of the texts of files, endlessly, each time in another order. Each token's label is the one that follows it.
 *
 * <p>A file whose name ends with {@code .jsonl} has an object a line: {@code {"text": …}}, or {@code {"prompt": …, "completion": …}}, of which
 * the completion alone is learned; one whose name ends with {@code .parquet} has columns of these names. Any other file is one text in UTF-8. A
 * text longer than the context becomes several sequences, the last label of one being the first token of the next. Of a prompt and its
 * completion that are longer together, the end is cut off. What has no label is left out, and counted.
 *
 * <p>Prompt and completion are made into tokens each by itself, so that both are the same when text is generated. Tokens of a window of texts
 * are in memory, 4 bytes each; texts that are all in one window are read once.
 *
 * <p>Threading: one thread at a time.
 */
public final class TextSequences implements TokenSequences {
    /** Tokens that are in memory at once unless said otherwise. */
    public static final int WINDOW_TOKENS = 1 << 26;

    /** Texts that are made into tokens together, and their letters, about. */
    private static final int MOST_TEXTS = 1024;

    private static final int MOST_LETTERS = 1 << 22;
    private static final int WHOLE = Integer.MAX_VALUE - 8;

    /** How often the files are read. */
    private enum Passes {
        ENDLESS,
        ONE
    }

    private final List<Path> files;
    private final Tokenizer tokenizer;
    private final TextConfig config;
    private final Passes passes;
    private final int windowTokens;
    /** Closed with this; null where it is the caller's. */
    private @Nullable Tokenizer owned;

    private int nextFile;
    private @Nullable TextReader reader;
    /** Those of the window's texts, one behind another. */
    private int[] tokens = new int[1024];

    private int tokenCount;
    /** By sequence: its first token, its length, the first token that is learned, and the end of its text. */
    private int[] starts = new int[64];

    private int[] lengths = new int[64];
    private int[] learnedFrom = new int[64];
    private int[] ends = new int[64];
    private int count;
    private long leftOut;

    private int[] order = {};
    private long epoch;
    private long window = -1;
    /** All texts are in the window. */
    private boolean whole;

    private boolean begun;
    private boolean found;
    private int next;
    private int current;

    private TextSequences(List<Path> files, Tokenizer tokenizer, TextConfig config, Passes passes, int windowTokens) {
        if (files.isEmpty()) {
            throw new IllegalArgumentException("files: expected a file or more, got none");
        }
        if (windowTokens < 1) {
            throw new IllegalArgumentException("windowTokens: expected at least 1, got " + windowTokens);
        }
        this.files = List.copyOf(files);
        this.tokenizer = Objects.requireNonNull(tokenizer, "tokenizer");
        this.config = Objects.requireNonNull(config, "config");
        this.passes = passes;
        this.windowTokens = windowTokens;
    }

    /**
     * Reads all files, now and once.
     *
     * @param files text files, files of JSON Lines and of Parquet
     * @param tokenizer stays the caller's, and is not used later
     * @throws TextException when a file cannot be read, or a line is not what it should be
     * @throws IllegalArgumentException when no file has a text of two tokens or more
     */
    public static TextSequences read(List<Path> files, Tokenizer tokenizer, TextConfig config) {
        var sequences = new TextSequences(files, tokenizer, config, Passes.ENDLESS, WHOLE);
        sequences.fill();
        return sequences;
    }

    /**
     * Reads files window by window, endlessly: the order is drawn within a window. Nothing is opened before the first {@link #advance}, which
     * throws {@link TextException} when a file cannot be read, or a line is not what it should be.
     *
     * @param files text files, files of JSON Lines and of Parquet
     * @param tokenizer stays the caller's, and is open as long as this is
     * @param windowTokens how many tokens are in memory, but for the last text of them
     * @throws IllegalArgumentException when there is no file, or {@code windowTokens} is not positive
     */
    public static TextSequences stream(List<Path> files, Tokenizer tokenizer, TextConfig config, int windowTokens) {
        return new TextSequences(files, tokenizer, config, Passes.ENDLESS, windowTokens);
    }

    /**
     * Reads files once, in their order, as an evaluation does; else as {@link #stream}.
     *
     * @throws IllegalArgumentException when there is no file
     */
    public static TextSequences once(List<Path> files, Tokenizer tokenizer, TextConfig config) {
        return new TextSequences(files, tokenizer, config, Passes.ONE, 1 << 20);
    }

    /** Closes the tokenizer, too. */
    TextSequences owning() {
        owned = tokenizer;
        return this;
    }

    /** Reads texts until the window is full or the files end; files that end in their first window are held whole. */
    private void fill() {
        tokenCount = 0;
        count = 0;
        window++;
        boolean first = window == 0;
        List<TextReader.Text> texts = new ArrayList<>();
        long letters = 0;
        while (tokenCount < windowTokens) {
            TextReader.Text text = nextText();
            if (text == null) {
                whole = first && passes == Passes.ENDLESS;
                break;
            }
            texts.add(text);
            letters += text.prompt().length() + (long) text.text().length();
            // A token has a letter or more, most of the time.
            if (texts.size() == MOST_TEXTS || letters > Math.min(MOST_LETTERS, windowTokens)) {
                addAll(texts);
                texts.clear();
                letters = 0;
            }
        }
        addAll(texts);
        found |= count > 0;
        if (!found && reader == null && nextFile == files.size()) {
            throw new IllegalArgumentException("files: expected a text of two tokens or more, got none in " + files
                    + ", and " + leftOut + " with fewer");
        }
        order = Arrays.copyOf(order, count);
        next = count;
    }

    /** Returns the next text of the files, null where they end. */
    private TextReader.@Nullable Text nextText() {
        while (true) {
            TextReader present = reader;
            if (present == null) {
                if (nextFile == files.size()) {
                    return null;
                }
                present = TextReader.open(files.get(nextFile++));
                reader = present;
            }
            TextReader.Text text = present.next();
            if (text != null) {
                return text;
            }
            reader = null;
            present.close();
        }
    }

    /** Makes texts into tokens, on the library's threads. */
    private void addAll(List<TextReader.Text> texts) {
        if (texts.isEmpty()) {
            return;
        }
        List<String> beginnings = new ArrayList<>();
        List<String> completions = new ArrayList<>();
        for (TextReader.Text text : texts) {
            boolean isPair = !text.prompt().isEmpty();
            ensurePairs(text);
            beginnings.add(isPair ? text.prompt() : text.text());
            if (isPair) {
                completions.add(text.text());
            }
        }
        List<int[]> begun = tokenizer.encodeAll(beginnings);
        List<int[]> completed = tokenizer.encodeAllInside(completions);
        int pair = 0;
        for (int i = 0; i < texts.size(); i++) {
            TextReader.Text text = texts.get(i);
            add(text.file(), begun.get(i), text.prompt().isEmpty() ? null : completed.get(pair++));
        }
    }

    private static void ensurePairs(TextReader.Text text) {
        try {
            Tokenizer.ensurePairs(text.prompt());
            Tokenizer.ensurePairs(text.text());
        } catch (IllegalArgumentException refused) {
            throw new TextException(text.file(), text.number(), String.valueOf(refused.getMessage()), refused);
        }
    }

    private void add(Path file, int[] begun, int @Nullable [] completion) {
        int first = tokenCount;
        append(file, begun);
        int learned = first;
        if (completion != null) {
            learned = tokenCount;
            append(file, completion);
        }
        if (config.end().isPresent()) {
            append(file, config.end().get());
        }
        int length = completion == null ? tokenCount - first : Math.min(config.context(), tokenCount - first);
        tokenCount = first + length;
        for (int start = first; start < tokenCount; start += config.context()) {
            addSequence(start, Math.min(config.context(), tokenCount - start), learned);
        }
    }

    private void append(Path file, int... more) {
        if (tokenCount > WHOLE - more.length) {
            throw new TextException(file, "expected fewer than 2^31 tokens in all files, got more", null);
        }
        if (tokenCount + more.length > tokens.length) {
            long doubled = Math.min(WHOLE, 2L * tokens.length);
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

    /** Returns how many sequences are in memory: all, where they are in one window. */
    public int count() {
        return count;
    }

    /** Returns how many sequences were left out, for nothing of them is learned: single tokens, and prompts as long as the context. */
    public long leftOut() {
        return leftOut;
    }

    /** Returns how often all sequences have come, the current one in its turn not counted. */
    public long epoch() {
        return epoch;
    }

    /**
     * {@inheritDoc}
     *
     * @throws TextException when a file cannot be read, or a line is not what it should be
     * @throws IllegalArgumentException when no file has a text of two tokens or more
     */
    @Override
    public boolean advance() {
        while (next == count) {
            if (!nextWindow()) {
                return false;
            }
        }
        current = order[next++];
        return true;
    }

    private boolean nextWindow() {
        if (!whole) {
            if (window >= 0 && reader == null && nextFile == files.size()) {
                if (passes == Passes.ONE) {
                    return false;
                }
                epoch++;
                nextFile = 0;
            }
            fill();
        } else if (begun) {
            epoch++;
        }
        begun = true;
        shuffle();
        next = 0;
        return true;
    }

    private void shuffle() {
        var random = new SplittableRandom(config.seed() + 0x9e3779b97f4a7c15L * epoch + 0xbf58476d1ce4e5b9L * window);
        for (int i = 0; i < count; i++) {
            int other = passes == Passes.ONE ? i : random.nextInt(i + 1);
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

    /** Closes the file that is read. */
    @Override
    public void close() {
        TextReader present = reader;
        reader = null;
        if (present != null) {
            present.close();
        }
        if (owned != null) {
            owned.close();
        }
    }
}
