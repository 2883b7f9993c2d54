package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.Letters;
import dev.chagres.models.data.UnknownLetters;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;
import picocli.CommandLine.TypeConversionException;

/**
 * Which FASTA files a command reads, and what their letters are.
 *
 * <p>Threading: one thread at a time.
 */
public final class FastaOptions {
    private static final Pattern WEIGHTED = Pattern.compile("(.+)=([0-9.]+(?:[eE][-+]?[0-9]+)?)", Pattern.DOTALL);

    /** Reads {@code --letters}. */
    static final class OfLetters extends EnumOption<Letters> {
        OfLetters() {
            super(Letters.class);
        }
    }

    /** Reads {@code --unknown}. */
    public static final class OfUnknown extends EnumOption<UnknownLetters> {
        OfUnknown() {
            super(UnknownLetters.class);
        }
    }

    @Option(
            names = "--fasta",
            arity = "1..*",
            paramLabel = "FILE",
            description =
                    "protein sequences, plain or gz: a file, a folder or a quoted pattern such as 'data/*.fasta.gz'; may be given several"
                            + " times, and to train with the weight of each in a mixture: a.fasta=0.7 b.fasta=0.3"
                            + " (default of train and evaluate: 398 sequences of UniProtKB/Swiss-Prot that are included)")
    private List<String> given = List.of();

    @Option(
            names = "--letters",
            converter = OfLetters.class,
            paramLabel = "protein|any|dna|rna",
            description =
                    "what the letters stand for; protein refuses a file that begins with nucleotides alone, any takes it as protein"
                            + " (default: protein)")
    private Letters letters = Letters.PROTEIN;

    @Option(
            names = "--unknown",
            converter = OfUnknown.class,
            paramLabel = "refuse|unk|skip",
            description =
                    "what becomes of letters that the vocabulary lacks: the file is refused, they become <unk>, or their sequences are"
                            + " left out; they are counted (default: refuse)")
    private UnknownLetters unknown = UnknownLetters.REFUSE;

    /** Returns whether files were named. */
    public boolean areGiven() {
        return !given.isEmpty();
    }

    /** A value of {@code --fasta}, with its weight if it has one. */
    private record Named(String name, @Nullable Double weight) {
        static Named of(String value) {
            Matcher matcher = WEIGHTED.matcher(value);
            if (!matcher.matches() || Files.exists(path(value))) {
                return new Named(value, null);
            }
            try {
                return new Named(matcher.group(1), Double.valueOf(matcher.group(2)));
            } catch (NumberFormatException e) {
                throw new IllegalArgumentException(
                        "--fasta: expected FILE=WEIGHT with a number such as 0.7, got " + ForeignText.plain(value), e);
            }
        }
    }

    private static Path path(String value) {
        try {
            return new FileChecks.FileOption().convert(value);
        } catch (TypeConversionException e) {
            throw new IllegalArgumentException("--fasta: " + e.getMessage(), e);
        }
    }

    private List<Named> named() {
        return given.stream().map(Named::of).toList();
    }

    /**
     * Checks the names.
     *
     * @throws IllegalArgumentException when a name is empty
     */
    public void check() {
        for (Named one : named()) {
            FileChecks.requireName("--fasta", path(one.name()));
        }
    }

    /**
     * Refuses a file of these that another option is to write.
     *
     * @throws IllegalArgumentException when it is one of them, or is called so until it is whole
     */
    public void requireOthers(String option, @Nullable Path file) {
        for (Named one : named()) {
            List<Path> paths = new ArrayList<>(List.of(path(one.name())));
            if (file != null && Files.isDirectory(paths.getFirst())) {
                paths.addAll(FastaSource.matching(one.name()).files());
            }
            for (Path path : paths) {
                FileChecks.requireApart(option, file, "--fasta", path);
            }
        }
    }

    /**
     * Returns the sequences that were named, one file after another.
     *
     * @throws IllegalArgumentException when none was named, or one has a weight
     * @throws dev.chagres.models.data.FastaException when a folder or a pattern has no file
     */
    public FastaSource source() {
        List<Named> all = named();
        if (all.isEmpty()) {
            throw new IllegalArgumentException("--fasta: expected a file of proteins, got none");
        }
        for (Named one : all) {
            if (one.weight() != null) {
                throw new IllegalArgumentException(
                        "--fasta: expected a file without a weight, for each sequence is read once, got "
                                + ForeignText.plain(one.name()) + "=" + one.weight());
            }
        }
        return as(FastaSource.joined(sources(all)));
    }

    /**
     * Returns the sequences to train on: those that were named, mixed where they have weights.
     *
     * @param usual where none was named
     * @throws IllegalArgumentException when some have weights and others have not, or a weight is not positive
     * @throws dev.chagres.models.data.FastaException when a folder or a pattern has no file
     */
    public FastaSource trainingSource(FastaSource usual) {
        List<Named> all = named();
        if (all.stream().allMatch(one -> one.weight() == null)) {
            return all.isEmpty() ? as(usual) : source();
        }
        List<Double> weights = new ArrayList<>();
        for (Named one : all) {
            Double weight = one.weight();
            if (weight == null || !(weight > 0 && weight < Double.POSITIVE_INFINITY)) {
                throw new IllegalArgumentException("--fasta: expected a weight above 0 for each file or for none, got "
                        + ForeignText.plain(one.name()) + (weight == null ? " without one" : "=" + weight));
            }
            weights.add(weight);
        }
        return as(FastaSource.mixture(sources(all), weights));
    }

    private static List<FastaSource> sources(List<Named> all) {
        return all.stream().map(one -> FastaSource.matching(one.name())).toList();
    }

    /** Returns other sequences, read in the same way. */
    public FastaSource as(FastaSource source) {
        return source.withLetters(letters).withUnknownLetters(unknown);
    }
}
