package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * Where FASTA records come from, a file or several: opened anew for each pass over them.
 *
 * <p>Threading: thread-safe; immutable but for {@link #unknown()}.
 */
public final class FastaSource {
    private static final String SHIPPED = "uniprot.fasta.gz";
    private final String name;
    private final List<FastaContent> contents;
    /** Of a mixture what it consists of; else empty. */
    private final List<Share> shares;

    private final Letters letters;
    private final UnknownLetters unknownLetters;
    private final Part part;
    private final AtomicReference<UnknownLetters.Count> unknown = new AtomicReference<>(UnknownLetters.Count.NONE);

    /** A part of a mixture. */
    private record Share(FastaSource source, double weight) {}

    /** Which of the records are taken. */
    private record Part(Records records, @Nullable HeldOut heldOut) {
        private static final Part ALL = new Part(Records.ALL, null);
    }

    /** Which of the records are taken. */
    private enum Records {
        ALL,
        HELD_OUT,
        OTHERS
    }

    FastaSource(String name, boolean repeatable, FastaContent.Opener opener) {
        this(name, List.of(new FastaContent(name, repeatable, opener, null)));
    }

    private FastaSource(String name, List<FastaContent> contents) {
        this(name, contents, List.of(), Letters.PROTEIN, UnknownLetters.REFUSE, Part.ALL);
    }

    private FastaSource(
            String name,
            List<FastaContent> contents,
            List<Share> shares,
            Letters letters,
            UnknownLetters unknownLetters,
            Part part) {
        this.name = name;
        this.contents = contents;
        this.shares = shares;
        this.letters = letters;
        this.unknownLetters = unknownLetters;
        this.part = part;
    }

    /**
     * Returns the source that reads a file, plain or gz; nothing is opened yet.
     *
     * @param file the file's path
     */
    public static FastaSource of(Path file) {
        return new FastaSource(file.toString(), List.of(FastaContent.of(file)));
    }

    /**
     * Returns the source that reads a file; or of a folder those whose names end as FASTA files do, {@code .fasta}, {@code .fa}, {@code .faa},
     * {@code .fas}, {@code .fna}, {@code .ffn} or {@code .frn}, also with {@code .gz} behind; or those that a pattern such as {@code
     * data/*.fasta.gz} names. Several are read in the order of their paths.
     *
     * @param given a path, or a pattern with {@code *}, {@code ?}, {@code []} or <code>{}</code>, as {@link java.nio.file.FileSystem#getPathMatcher}
     *     reads it
     * @throws FastaException when a folder or a pattern has no such file, or cannot be read
     * @throws java.nio.file.InvalidPathException when it is no path
     */
    public static FastaSource matching(String given) {
        List<Path> files = FastaFiles.matching(given);
        return files.size() == 1 && files.getFirst().toString().equals(given)
                ? of(files.getFirst())
                : new FastaSource(given, files.stream().map(FastaContent::of).toList());
    }

    /**
     * Returns the sequences of several sources, one source after another.
     *
     * @throws IllegalArgumentException when there is none
     * @throws IllegalStateException when one has a part of its sequences, or is a mixture
     */
    public static FastaSource joined(List<FastaSource> sources) {
        if (sources.size() == 1) {
            return sources.getFirst();
        }
        return new FastaSource(names("sources", sources), contents(sources));
    }

    /**
     * Returns a mixture: which source a sequence of training comes from is drawn by the weights, and each source has epochs of its own. What
     * reads it once, as evaluation does, has all sequences of all.
     *
     * @param weights of the sources, above 0, in any unit
     * @throws IllegalArgumentException when there is no source, another number of weights, or one that is not positive and finite
     * @throws IllegalStateException when a source has a part of its sequences, or is a mixture itself
     */
    public static FastaSource mixture(List<FastaSource> sources, List<Double> weights) {
        if (sources.size() != weights.size()) {
            throw new IllegalArgumentException(
                    "weights: expected one for each of " + sources.size() + " sources, got " + weights.size());
        }
        List<Share> shares = new ArrayList<>();
        for (int i = 0; i < weights.size(); i++) {
            double weight = weights.get(i);
            if (!(weight > 0 && weight < Double.POSITIVE_INFINITY)) {
                throw new IllegalArgumentException("weights: expected positive numbers, got " + weight);
            }
            shares.add(new Share(sources.get(i), weight));
        }
        List<FastaContent> contents = contents(sources);
        return new FastaSource(
                names("weights", sources), contents, shares, Letters.PROTEIN, UnknownLetters.REFUSE, Part.ALL);
    }

    private static String names(String argument, List<FastaSource> sources) {
        if (sources.isEmpty()) {
            throw new IllegalArgumentException(argument + ": expected a source or more, got none");
        }
        return sources.stream().map(FastaSource::name).collect(Collectors.joining(", "));
    }

    private static List<FastaContent> contents(List<FastaSource> sources) {
        for (FastaSource source : sources) {
            if (source.part.heldOut() != null || !source.shares.isEmpty()) {
                throw new IllegalStateException(
                        "expected sources of all sequences, and no mixture, got " + source.name);
            }
        }
        return sources.stream().flatMap(source -> source.contents.stream()).toList();
    }

    /** Returns the same whose letters stand for something else than amino acids. */
    public FastaSource withLetters(Letters newLetters) {
        return with(newLetters, unknownLetters, part);
    }

    /** Returns the same that does something else with unknown letters than refuse the file. */
    public FastaSource withUnknownLetters(UnknownLetters newChoice) {
        return with(letters, newChoice, part);
    }

    private FastaSource with(Letters newLetters, UnknownLetters newChoice, Part newPart) {
        List<Share> parts = shares.stream()
                .map(share -> new Share(share.source().with(newLetters, newChoice, newPart), share.weight()))
                .toList();
        return new FastaSource(name, contents, parts, newLetters, newChoice, newPart);
    }

    /**
     * Returns the source that reads what was read already, such as one record.
     *
     * @param name that errors begin with
     * @param content of a FASTA file, plain or gz
     */
    public static FastaSource of(String name, byte[] content) {
        byte[] own = content.clone();
        return new FastaSource(name, true, () -> new ByteArrayInputStream(own));
    }

    /** Returns the 398 sequences of UniProtKB/Swiss-Prot that travel with this module ({@code uniprot.txt} says more). */
    public static FastaSource shipped() {
        return new FastaSource(SHIPPED, true, () -> {
            InputStream stream = FastaSource.class.getResourceAsStream(SHIPPED);
            if (stream == null) {
                throw new FileNotFoundException("resource dev/chagres/models/data/" + SHIPPED);
            }
            return stream;
        });
    }

    /**
     * Returns the same without the sequences that are held out.
     *
     * @throws FastaException when it cannot be read twice, as a pipe
     * @throws IllegalStateException when this has a part of the sequences already
     */
    public FastaSource without(HeldOut heldOut) {
        return of(new Part(Records.OTHERS, heldOut));
    }

    /**
     * Returns the sequences of this that are held out.
     *
     * @throws FastaException when it cannot be read twice, as a pipe
     * @throws IllegalStateException when this has a part of the sequences already
     */
    public FastaSource only(HeldOut heldOut) {
        return of(new Part(Records.HELD_OUT, heldOut));
    }

    private FastaSource of(Part taken) {
        if (part.heldOut() != null) {
            throw new IllegalStateException("expected a source of all sequences, got " + name + taken());
        }
        ensureRepeatable();
        return with(letters, unknownLetters, taken);
    }

    /**
     * Checks that the source can be read several times, as evaluation does.
     *
     * @throws FastaException when it is a pipe or a terminal
     */
    public void ensureRepeatable() {
        contents.forEach(FastaContent::ensureRepeatable);
    }

    /** Returns what letters stand for. */
    public Letters letters() {
        return letters;
    }

    /** Returns what becomes of unknown letters. */
    public UnknownLetters unknownLetters() {
        return unknownLetters;
    }

    /** Returns the files that are read, none where the content lies in memory or in a jar. */
    public List<Path> files() {
        return contents.stream()
                .map(FastaContent::file)
                .filter(Objects::nonNull)
                .toList();
    }

    /** Hears how many unknown letters a pass over the files has found so far. */
    void count(UnknownLetters.Count soFar) {
        unknown.accumulateAndGet(soFar, UnknownLetters.Count::or);
    }

    /** Returns how many unknown letters were found by that pass over the sequences which has found most. */
    public UnknownLetters.Count unknown() {
        UnknownLetters.Count ofShares = shares.stream()
                .map(share -> share.source().unknown())
                .reduce(UnknownLetters.Count.NONE, UnknownLetters.Count::plus);
        return unknown.get().or(ofShares);
    }

    /** Returns in a line how many unknown letters were found and what became of them; empty where there was none. */
    public String unknownText() {
        UnknownLetters.Count count = unknown();
        if (count.letters() == 0) {
            return "";
        }
        String letter = count.letters() == 1 ? "1 unknown letter" : count.letters() + " unknown letters";
        String sequence = count.sequences() == 1 ? "1 sequence" : count.sequences() + " sequences";
        return unknownLetters == UnknownLetters.SKIP
                ? sequence + " with " + letter + " left out: " + name
                : letter + " of " + sequence + " became <unk>: " + name;
    }

    /** Returns the name that errors begin with: the path as it was given. */
    public String name() {
        return name;
    }

    /**
     * Returns a text that tells this content from another one: its bytes, and a checksum of its first and last MiB, where a gz file has the
     * checksum of all. The file is not read as a whole. Of a pipe or a terminal it tells nothing but that.
     *
     * @throws FastaException when the file cannot be read
     */
    public String content() {
        return contentOfFiles() + readAs() + taken();
    }

    private String contentOfFiles() {
        if (!shares.isEmpty()) {
            return shares.stream()
                    .map(share -> share.weight() + " of " + share.source().contentOfFiles())
                    .collect(Collectors.joining(", "));
        }
        if (contents.size() == 1) {
            return contents.getFirst().text();
        }
        var checksum = new CRC32C();
        for (FastaContent one : contents) {
            checksum.update(one.text().getBytes(StandardCharsets.US_ASCII));
        }
        return String.format("%d files of checksum %08x", contents.size(), checksum.getValue());
    }

    /** Says how letters are read, where it is not the usual way. */
    private String readAs() {
        return (letters == Letters.PROTEIN ? "" : ", letters " + letters)
                + (unknownLetters == UnknownLetters.REFUSE ? "" : ", unknown letters " + unknownLetters);
    }

    /** Says which sequences are taken, where not all are. */
    private String taken() {
        HeldOut heldOut = part.heldOut();
        return heldOut == null
                ? ""
                : (part.records() == Records.OTHERS ? " without " : " of which only ") + heldOut.fraction()
                        + " of the sequences";
    }

    /** Whether a second {@link #open} begins at the first record again; false for pipes and terminals. */
    boolean isRepeatable() {
        return contents.stream().allMatch(FastaContent::repeatable);
    }

    /**
     * Returns the sequences without end: each epoch holds every sequence once, in an order drawn from the seed. Of a mixture each source has
     * epochs of its own.
     *
     * @param seed what the order follows from
     * @param windowResidues how many residues are held at once, at least 1
     * @throws IllegalArgumentException when {@code windowResidues} is not positive
     */
    public SequenceStream shuffled(long seed, int windowResidues) {
        if (shares.isEmpty()) {
            return new ShuffledSequences(this, seed, windowResidues);
        }
        List<SequenceStream> streams = new ArrayList<>();
        for (int i = 0; i < shares.size(); i++) {
            streams.add(shares.get(i)
                    .source()
                    .shuffled(SplitMix.key(seed, i), Math.max(1, windowResidues / shares.size())));
        }
        return new MixedSequences(
                streams, shares.stream().mapToDouble(Share::weight).toArray(), seed);
    }

    /**
     * Opens the source at its first byte.
     *
     * @throws FastaException when there is no such file, it is a directory, may not be read, or fails while its first
     *     bytes are read
     */
    public FastaReader open() {
        HeldOut heldOut = part.heldOut();
        boolean taken = part.records() == Records.HELD_OUT;
        return new FastaReader(
                this,
                contents.iterator(),
                heldOut == null ? null : (residues, length) -> heldOut.holds(residues, length) == taken);
    }
}
