package dev.chagres.models.text;

import dev.chagres.models.data.FastaSource;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Texts of files and the tokenizer that makes them into tokens: opened anew for each run over them.
 *
 * <p>Threading: immutable.
 *
 * @param files text files, files of JSON Lines and of Parquet
 * @param tokenizer the folder that has {@code tokenizer.json}
 * @param config how texts become sequences
 */
public record TextSource(List<Path> files, Path tokenizer, TextConfig config) {
    /**
     * Checks that there is a file.
     *
     * @throws IllegalArgumentException when there is none
     */
    public TextSource {
        files = List.copyOf(files);
        if (files.isEmpty()) {
            throw new IllegalArgumentException("files: expected a file or more, got none");
        }
    }

    /** Returns the names of the files. */
    public String name() {
        return files.stream().map(Path::toString).collect(Collectors.joining(", "));
    }

    /**
     * Returns a text that tells this content, and the tokens that are made of it, from another one: bytes and checksums, by the first and last
     * MiB of each file, also of {@code chat_template.jinja} where there is one.
     *
     * @throws dev.chagres.models.data.FastaException when a file cannot be read
     */
    public String content() {
        String of =
                FastaSource.joined(files.stream().map(FastaSource::of).toList()).content();
        String tokens = FastaSource.of(tokenizer.resolve(Tokenizer.FILE)).content();
        Path template = tokenizer.resolve(ChatTemplate.FILE);
        return of + ", tokenizer of " + tokens
                + (Files.exists(template)
                        ? ", template of " + FastaSource.of(template).content()
                        : "")
                + config.end().map(end -> ", end " + end).orElse("") + config.part();
    }

    /**
     * Opens the sequences, without end: {@link TextSequences#stream}.
     *
     * @param seed what the order follows from
     * @throws TextException when there is no tokenizer
     */
    public TextSequences shuffled(long seed, int windowTokens) {
        return TextSequences.stream(files, Tokenizer.open(tokenizer), config.withSeed(seed), windowTokens)
                .owning();
    }

    /**
     * Opens the sequences of all texts once, in the order of the files.
     *
     * @throws TextException when there is no tokenizer
     */
    public TextSequences once() {
        return TextSequences.once(files, Tokenizer.open(tokenizer), config).owning();
    }
}
