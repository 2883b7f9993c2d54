package dev.chagres.bindings;

import java.util.Comparator;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A library's version, ordered by major, then minor, then patch.
 *
 * <p>Threading: immutable.
 */
public record LibraryVersion(int major, int minor, int patch) implements Comparable<LibraryVersion> {

    private static final Pattern TEXT = Pattern.compile("(\\d{1,9})\\.(\\d{1,9})(?:\\.(\\d{1,9}))?.*");
    private static final Comparator<LibraryVersion> ORDER = Comparator.comparingInt(LibraryVersion::major)
            .thenComparingInt(LibraryVersion::minor)
            .thenComparingInt(LibraryVersion::patch);

    /** Reads the numbers at the front of {@code "9.19.0.56"} or {@code "2.20"}; empty when there are none. */
    static Optional<LibraryVersion> parse(String text) {
        Matcher numbers = TEXT.matcher(text);
        if (!numbers.matches()) {
            return Optional.empty();
        }
        String patch = numbers.group(3);
        return Optional.of(new LibraryVersion(
                Integer.parseInt(numbers.group(1)),
                Integer.parseInt(numbers.group(2)),
                patch == null ? 0 : Integer.parseInt(patch)));
    }

    @Override
    public int compareTo(LibraryVersion other) {
        return ORDER.compare(this, other);
    }

    @Override
    public String toString() {
        return major + "." + minor + "." + patch;
    }
}
