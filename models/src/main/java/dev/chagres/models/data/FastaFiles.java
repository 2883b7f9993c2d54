package dev.chagres.models.data;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.PathMatcher;
import java.util.List;
import java.util.Objects;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import java.util.stream.Stream;

/**
 * The files that a path or a pattern names.
 *
 * <p>Threading: thread-safe.
 */
final class FastaFiles {
    private static final Pattern FASTA = Pattern.compile("(?i).+\\.(fasta|fa|faa|fas|fna|ffn|frn)(\\.gz)?");
    private static final Pattern WILD = Pattern.compile("[*?\\[{]");

    private FastaFiles() {}

    /**
     * Returns the files, sorted.
     *
     * @throws FastaException when there is none, or they cannot be listed
     */
    static List<Path> matching(String given) {
        Path path = Path.of(given);
        if (Files.isDirectory(path)) {
            return list(
                    given,
                    path,
                    1,
                    FastaFiles::isFasta,
                    "holds no FASTA file: none ends with .fasta, .fa, .faa, .fas,"
                            + " .fna, .ffn or .frn, or with .gz behind that");
        }
        if (Files.exists(path) || !WILD.matcher(given).find()) {
            return List.of(path);
        }
        PathMatcher matcher;
        try {
            matcher = path.getFileSystem().getPathMatcher("glob:" + given);
        } catch (PatternSyntaxException | InvalidPathException wrong) {
            throw new FastaException(given, "is no pattern of file names: " + wrong.getMessage(), wrong);
        }
        Path root = path.isAbsolute() ? path.getRoot() : Path.of("");
        int plain = 0;
        while (plain < path.getNameCount()
                && !WILD.matcher(path.getName(plain).toString()).find()) {
            root = root.resolve(path.getName(plain++));
        }
        int depth = given.contains("**") ? Integer.MAX_VALUE : path.getNameCount() - plain;
        return list(given, root, depth, matcher::matches, "no file has such a name");
    }

    private static boolean isFasta(Path file) {
        return FASTA.matcher(String.valueOf(file.getFileName())).matches();
    }

    private static boolean isHidden(Path file) {
        return String.valueOf(file.getFileName()).startsWith(".");
    }

    private static List<Path> list(String given, Path root, int depth, Predicate<Path> chosen, String none) {
        List<Path> files;
        try (Stream<Path> all = Files.walk(root, depth)) {
            files = all.filter(file -> chosen.test(file) && !isHidden(file) && Files.isRegularFile(file))
                    .sorted()
                    .toList();
        } catch (IOException failure) {
            throw FastaContent.unreadable(given, failure);
        } catch (UncheckedIOException failure) {
            throw FastaContent.unreadable(given, Objects.requireNonNull(failure.getCause()));
        }
        if (files.isEmpty()) {
            throw new FastaException(given, none);
        }
        return files;
    }
}
