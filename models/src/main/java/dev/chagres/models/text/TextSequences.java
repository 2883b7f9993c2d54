package dev.chagres.models.text;

import dev.chagres.batch.TokenSequences;
import dev.chagres.models.text.TokenizedTexts.Learned;
import dev.chagres.models.text.TokenizedTexts.Longer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Sequences of the texts of files, endlessly, each time in another order. Each token's label is the one that follows it.
 *
 * <p>A file whose name ends with {@code .jsonl} has an object a line: {@code {"text": …}}, or {@code {"prompt": …, "completion": …}}, of which
 * the completion alone is learned, or {@code {"messages": [{"role": …, "content": …}, …], "tools": […]}}, of which the {@link ChatTemplate} says what the
 * assistant says, which is learned, and what comes behind; one whose name ends with {@code .parquet} has columns of these names. Any other file is one text in UTF-8. A
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
    private final TokenizedTexts texts;

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
        texts = new TokenizedTexts(config.context());
    }

    /**
     * Reads all files, now and once.
     *
     * @param files text files, files of JSON Lines and of Parquet
     * @param tokenizer stays the caller's, and is not used later
     * @throws TextException when a file cannot be read, a line is not what it should be, or no file has a text of two tokens or more
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
        texts.clear();
        window++;
        boolean first = window == 0;
        List<TextReader.Text> read = new ArrayList<>();
        long letters = 0;
        while (texts.tokens() < windowTokens) {
            TextReader.Text text = nextText();
            if (text == null) {
                whole = first && passes == Passes.ENDLESS;
                break;
            }
            read.add(text);
            letters += text.prompt().length()
                    + (long) text.text().length()
                    + 1000L * (text.messages().size() + text.tools().size());
            // A token has a letter or more, most of the time.
            if (read.size() == MOST_TEXTS || letters > Math.min(MOST_LETTERS, windowTokens)) {
                addAll(read);
                read.clear();
                letters = 0;
            }
        }
        addAll(read);
        found |= texts.count() > 0;
        if (!found && reader == null && nextFile == files.size()) {
            throw new TextException(
                    files.getFirst(),
                    "expected a text of two tokens or more, got none "
                            + (files.size() > 1 ? "there and in " + (files.size() - 1) + " more, " : "")
                            + "and " + texts.leftOut()
                            + " with nothing to learn: with fewer, or without a completion or an answer of the assistant",
                    null);
        }
        next = texts.count();
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
            if (text != null && config.takes(text.bytes())) {
                return text;
            }
            if (text != null) {
                continue;
            }
            reader = null;
            present.close();
        }
    }

    /** Makes texts into tokens, on the library's threads. */
    private void addAll(List<TextReader.Text> read) {
        List<String> beginnings = new ArrayList<>();
        List<String> completions = new ArrayList<>();
        for (TextReader.Text text : read) {
            boolean isPair = !text.prompt().isEmpty();
            if (!text.messages().isEmpty()) {
                continue;
            }
            ensurePairs(text);
            beginnings.add(isPair ? text.prompt() : text.text());
            if (isPair) {
                completions.add(text.text());
            }
        }
        List<int[]> begun = tokenizer.encodeAll(beginnings);
        List<int[]> completed = tokenizer.encodeAllInside(completions);
        int plain = 0;
        int pair = 0;
        for (TextReader.Text text : read) {
            if (text.messages().isEmpty()) {
                add(text.file(), begun.get(plain++), text.prompt().isEmpty() ? null : completed.get(pair++));
            } else {
                addChat(text);
            }
        }
    }

    private void addChat(TextReader.Text text) {
        Tokenizer.Chat chat;
        try {
            chat = tokenizer.encode(text.messages(), text.tools());
        } catch (IllegalArgumentException | TextException refused) {
            throw new TextException(text.file(), text.number(), String.valueOf(refused.getMessage()), refused);
        }
        int[] tokens = chat.tokens();
        for (int i = 0; i < tokens.length; i++) {
            texts.append(text.file(), chat.learned().get(i) ? Learned.YES : Learned.NO, tokens[i]);
        }
        texts.end(Longer.CUT);
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
        if (completion == null) {
            texts.append(file, Learned.YES, begun);
        } else {
            texts.append(file, Learned.NO, begun);
            texts.append(file, Learned.YES, completion);
        }
        if (config.end().isPresent()) {
            texts.append(file, Learned.YES, config.end().get());
        }
        texts.end(completion == null ? Longer.DIVIDED : Longer.CUT);
    }

    /**
     * Opens the sequences in memory so many times, each time in another order, apart from this one.
     *
     * @throws IllegalArgumentException when {@code epochs} is not positive
     * @throws IllegalStateException when not all texts are in memory, as {@link #read} has them
     */
    public TokenSequences epochs(int epochs) {
        if (epochs < 1) {
            throw new IllegalArgumentException("epochs: expected at least 1, got " + epochs);
        }
        ensureWhole("epochs");
        return new InMemory(epochs);
    }

    /**
     * Opens the sequences in memory once, in their order, apart from this one.
     *
     * @throws IllegalStateException when not all texts are in memory, as {@link #read} has them
     */
    public TokenSequences once() {
        ensureWhole("once");
        return new InMemory(0);
    }

    private void ensureWhole(String call) {
        if (!whole) {
            throw new IllegalStateException(
                    call + ": expected all texts in memory, as read has them, got a part of them");
        }
    }

    /** The sequences of the window: shuffled so many times, with 0 once in order. */
    private final class InMemory implements TokenSequences {
        private final int epochs;
        private int[] turn = {};
        private int turns;
        private int following;
        private int present;

        private InMemory(int epochs) {
            this.epochs = epochs;
        }

        @Override
        public boolean advance() {
            if (following == turn.length) {
                if (turns == Math.max(epochs, 1)) {
                    return false;
                }
                turn = epochs == 0 ? texts.inOrder() : texts.shuffled(seed(turns, 0));
                turns++;
                following = 0;
            }
            present = turn[following++];
            return true;
        }

        @Override
        public int length() {
            return texts.length(present);
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int written) {
            return texts.write(present, ids, labels, start, written);
        }
    }

    private long seed(long turn, long part) {
        return config.seed() + 0x9e3779b97f4a7c15L * turn + 0xbf58476d1ce4e5b9L * part;
    }

    /** Returns the tokens of the longest sequence in memory. */
    public int longest() {
        return IntStream.range(0, texts.count()).map(texts::length).max().orElse(0);
    }

    /** Returns how many sequences are in memory: all, where they are in one window. */
    public int count() {
        return texts.count();
    }

    /** Returns how many sequences were left out, for nothing of them is learned: single tokens, and prompts as long as the context. */
    public long leftOut() {
        return texts.leftOut();
    }

    /** Returns how often all sequences have come, the current one in its turn not counted. */
    public long epoch() {
        return epoch;
    }

    /**
     * {@inheritDoc}
     *
     * @throws TextException when a file cannot be read, a line is not what it should be, or no file has a text of two tokens or more
     */
    @Override
    public boolean advance() {
        while (next == texts.count()) {
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
        order = passes == Passes.ONE ? texts.inOrder() : texts.shuffled(seed(epoch, window));
        next = 0;
        return true;
    }

    @Override
    public int length() {
        return texts.length(current);
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int written) {
        return texts.write(current, ids, labels, start, written);
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
