package dev.chagres.models.text;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Text to tokens and back, by the {@code tokenizer.json} of a folder of Hugging Face: byte-level BPE, as Llama 3 and Qwen have it, and all
 * else that its library computes, such as what Llama 2 and Mistral have of SentencePiece.
 *
 * <p>The library is Hugging Face's own, in Rust, as {@code ai.djl.huggingface:tokenizers} (Apache License 2.0) has it in its jar. A program
 * that uses this class names that dependency. Where the system property {@code ai.djl.offline} is not set, this class sets it to {@code
 * true}: otherwise the library fetches a copy of itself on machines with a GPU, and reports its use on some.
 *
 * <p>Threading: one thread at a time.
 */
public final class Tokenizer implements AutoCloseable {
    private static final String OFFLINE = "ai.djl.offline";
    static final String FILE = "tokenizer.json";
    private static final Map<String, String> OPTIONS = Map.of("truncation", "false", "padding", "false");

    private final Path file;
    /** Null once closed. */
    private @Nullable HuggingFaceTokenizer tokenizer;
    /** Null before the first chat. */
    private @Nullable ChatTemplate template;

    private Tokenizer(Path file, HuggingFaceTokenizer tokenizer) {
        this.file = file;
        this.tokenizer = tokenizer;
    }

    /**
     * Opens the tokenizer of a folder.
     *
     * @param folder with {@code tokenizer.json}
     * @throws TextException when there is no such file, or the library cannot read it
     * @throws IllegalStateException when the library is not on the class path
     */
    public static Tokenizer open(Path folder) {
        Path file = Objects.requireNonNull(folder, "folder").resolve(FILE);
        if (!Files.isRegularFile(file)) {
            throw new TextException(
                    file,
                    "expected a file, got none"
                            + (Files.exists(folder.resolve("tokenizer.model"))
                                    ? ", but tokenizer.model, which transformers converts: AutoTokenizer.from_pretrained('FOLDER').save_pretrained('FOLDER')"
                                    : ""),
                    null);
        }
        if (System.getProperty(OFFLINE) == null) {
            System.setProperty(OFFLINE, "true");
        }
        try (var input = Files.newInputStream(file)) {
            return new Tokenizer(file, HuggingFaceTokenizer.newInstance(input, OPTIONS));
        } catch (IOException | RuntimeException failure) {
            throw new TextException(file, "expected a tokenizer: " + failure.getMessage(), failure);
        } catch (NoClassDefFoundError missing) {
            throw new IllegalStateException(
                    "Tokenizer: expected the library ai.djl.huggingface:tokenizers, got none; add it to the program's"
                            + " dependencies",
                    missing);
        }
    }

    /**
     * Returns the tokens of a text, and those that the tokenizer puts around one, such as the one that begins it.
     *
     * @throws IllegalArgumentException when the text has half of a surrogate pair
     * @throws IllegalStateException when this is closed
     */
    public int[] encode(String text) {
        return encode(text, SpecialTokens.ADDED);
    }

    /**
     * Returns the tokens of a text alone, such as one that follows another.
     *
     * @throws IllegalArgumentException when the text has half of a surrogate pair
     * @throws IllegalStateException when this is closed
     */
    public int[] encodeInside(String text) {
        return encode(text, SpecialTokens.LEFT_OUT);
    }

    /** The same as {@link #encode} of several texts, whose surrogates are pairs, on the library's threads. */
    List<int[]> encodeAll(List<String> texts) {
        return encodeAll(texts, SpecialTokens.ADDED);
    }

    /** The same as {@link #encodeInside} of several texts, whose surrogates are pairs, on the library's threads. */
    List<int[]> encodeAllInside(List<String> texts) {
        return encodeAll(texts, SpecialTokens.LEFT_OUT);
    }

    /** Tokens of a chat, and which of them the assistant says. */
    record Chat(int[] tokens, BitSet learned) {}

    /**
     * Returns a chat's tokens by the template of the tokenizer's folder. A token is learned if a character of it is.
     *
     * @throws TextException when there is no template, or it does not fit
     */
    Chat encode(List<ChatTemplate.Message> messages, List<ChatTemplate.Tool> tools) {
        HuggingFaceTokenizer present = opened();
        ChatTemplate by = template;
        if (by == null) {
            by = ChatTemplate.open(Objects.requireNonNull(file.getParent()));
            template = by;
        }
        ChatTemplate.Rendered rendered = by.learned(messages, tools);
        String text = rendered.text();
        ensurePairs(text);
        var encoding = present.encode(text, false, false);
        var places = encoding.getCharTokenSpans();
        BitSet learned = new BitSet();
        for (int[] span : rendered.spans()) {
            // The library counts characters of Unicode.
            int begin = text.codePointCount(0, span[0]);
            int end = begin + text.codePointCount(span[0], span[1]);
            for (int i = 0; i < places.length; i++) {
                if (places[i] != null && places[i].getStart() < end && places[i].getEnd() > begin) {
                    learned.set(i);
                }
            }
        }
        return new Chat(ids(encoding.getIds()), learned);
    }

    private List<int[]> encodeAll(List<String> texts, SpecialTokens special) {
        HuggingFaceTokenizer present = opened();
        return texts.isEmpty()
                ? List.of()
                : Arrays.stream(present.batchEncode(texts, special == SpecialTokens.ADDED, false))
                        .map(encoding -> ids(encoding.getIds()))
                        .toList();
    }

    private enum SpecialTokens {
        ADDED,
        LEFT_OUT
    }

    private int[] encode(String text, SpecialTokens special) {
        HuggingFaceTokenizer present = opened();
        ensurePairs(Objects.requireNonNull(text, "text"));
        return ids(present.encode(text, special == SpecialTokens.ADDED, false).getIds());
    }

    private static int[] ids(long[] tokens) {
        int[] ids = new int[tokens.length];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = Math.toIntExact(tokens[i]);
        }
        return ids;
    }

    /** UTF-8, which the library reads, has no code for half of a pair. */
    static void ensurePairs(String text) {
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            boolean isPair = Character.isHighSurrogate(c)
                    && i + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(i + 1));
            if (isPair) {
                i++;
            } else if (Character.isSurrogate(c)) {
                throw new IllegalArgumentException("text: expected Unicode characters, got half of a surrogate pair, "
                        + Integer.toHexString(c) + ", at " + i);
            }
        }
    }

    /**
     * Returns the text of tokens, of special ones, too.
     *
     * @throws IllegalArgumentException when a token is negative
     * @throws IllegalStateException when this is closed
     */
    public String decode(int... tokens) {
        HuggingFaceTokenizer present = opened();
        long[] ids = new long[tokens.length];
        for (int i = 0; i < ids.length; i++) {
            if (tokens[i] < 0) {
                throw new IllegalArgumentException("tokens: expected at least 0, got " + tokens[i] + " at " + i);
            }
            ids[i] = tokens[i];
        }
        return present.decode(ids, false);
    }

    private HuggingFaceTokenizer opened() {
        HuggingFaceTokenizer present = tokenizer;
        if (present == null) {
            throw new IllegalStateException("the tokenizer of " + file + " is closed");
        }
        return present;
    }

    /** Frees the library's memory. A second call does nothing. */
    @Override
    public void close() {
        HuggingFaceTokenizer present = tokenizer;
        tokenizer = null;
        if (present != null) {
            present.close();
        }
    }

    @Override
    public String toString() {
        return "tokenizer of " + file;
    }
}
