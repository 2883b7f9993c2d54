package dev.chagres.models.huggingface;

import dev.chagres.models.data.EsmVocabulary;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * What transformers makes an {@code EsmTokenizer} of: {@code vocab.txt}, {@code tokenizer_config.json}, {@code special_tokens_map.json}; and
 * copies of what it makes other tokenizers of.
 *
 * <p>Threading: thread-safe.
 */
final class TokenizerFiles {
    static final String VOCABULARY = "vocab.txt";
    private static final Map<String, Integer> SPECIAL = new LinkedHashMap<>();

    static {
        SPECIAL.put("cls_token", EsmVocabulary.CLS);
        SPECIAL.put("eos_token", EsmVocabulary.EOS);
        SPECIAL.put("mask_token", EsmVocabulary.MASK);
        SPECIAL.put("pad_token", EsmVocabulary.PAD);
        SPECIAL.put("unk_token", EsmVocabulary.UNKNOWN);
    }

    /** Files of any tokenizer, and of how text is generated and laid out for chats. */
    private static final List<String> COPIED = List.of(
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            "vocab.json",
            "merges.txt",
            "tokenizer.model",
            "chat_template.jinja",
            "chat_template.json",
            "generation_config.json");

    private TokenizerFiles() {}

    /** Returns the contents of those files of a tokenizer that a folder has, by their names. */
    static Map<String, byte[]> contents(Path folder) {
        if (!Files.isDirectory(folder)) {
            throw CheckpointException.of(folder, "expected a folder with files of a tokenizer, got none", null);
        }
        Map<String, byte[]> files = new LinkedHashMap<>();
        for (String name : COPIED) {
            Path file = folder.resolve(name);
            if (Files.isRegularFile(file)) {
                try {
                    files.put(name, Files.readAllBytes(file));
                } catch (IOException failure) {
                    throw CheckpointException.of(file, "could not be read: " + failure, failure);
                }
            }
        }
        return files;
    }

    /** Checks a folder's vocabulary, if it has one. */
    static void check(Path folder) {
        Path file = folder.resolve(VOCABULARY);
        if (!Files.exists(file)) {
            return;
        }
        try {
            List<String> lines = Files.readString(file).lines().toList();
            if (!lines.equals(EsmVocabulary.tokens())) {
                throw CheckpointException.of(
                        file, "expected the " + EsmVocabulary.SIZE + " tokens of ESM-2, a line each, got others", null);
            }
        } catch (IOException failure) {
            throw CheckpointException.of(file, "could not be read as UTF-8: " + failure, failure);
        }
    }

    /** Returns the contents of the files by their names. */
    static Map<String, byte[]> contents() {
        Map<String, byte[]> files = new LinkedHashMap<>();
        files.put(VOCABULARY, String.join("\n", EsmVocabulary.tokens()).getBytes(StandardCharsets.UTF_8));
        Map<String, Object> special = new LinkedHashMap<>();
        SPECIAL.forEach((name, id) -> special.put(name, EsmVocabulary.tokens().get(id)));
        files.put("special_tokens_map.json", JsonText.bytes(special));
        Map<String, Object> config = new LinkedHashMap<>(special);
        config.put("clean_up_tokenization_spaces", false);
        config.put("model_max_length", new BigDecimal("1000000000000000019884624838656"));
        config.put("tokenizer_class", "EsmTokenizer");
        files.put("tokenizer_config.json", JsonText.bytes(config));
        return files;
    }
}
