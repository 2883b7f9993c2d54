package dev.chagres.bindings;

/**
 * The versions of a library that this release works with: {@code from <= version < below}.
 *
 * <p>Threading: immutable.
 *
 * @param from the oldest version that works
 * @param below the first version that is too new
 */
public record VersionWindow(LibraryVersion from, LibraryVersion below) {

    /**
     * @throws IllegalArgumentException when the window holds no version
     */
    public VersionWindow {
        if (from.compareTo(below) >= 0) {
            throw new IllegalArgumentException("from: expected a version below " + below + ", got " + from);
        }
    }

    static VersionWindow of(int fromMajor, int fromMinor, int belowMajor, int belowMinor) {
        return new VersionWindow(
                new LibraryVersion(fromMajor, fromMinor, 0), new LibraryVersion(belowMajor, belowMinor, 0));
    }

    /** Whether a version lies in the window. */
    public boolean contains(LibraryVersion version) {
        return from.compareTo(version) <= 0 && version.compareTo(below) < 0;
    }

    /** Which side must move, for a version outside the window. */
    String side(String library, LibraryVersion version) {
        return version.compareTo(from) < 0
                ? library + " is too old: upgrade it"
                : library + " is too new: downgrade it, or upgrade Chagres";
    }

    @Override
    public String toString() {
        return from.major() + "." + from.minor() + " <= version < " + below.major() + "." + below.minor();
    }
}
