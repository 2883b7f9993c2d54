package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/** Opens NVIDIA's libraries and checks their versions. */
final class VendorLibraries {

    /** {@code warn} turns a version outside its window from an error into a log line. */
    static final String VERSIONS_PROPERTY = "chagres.versions";

    private VendorLibraries() {}

    /**
     * Opens every part of a library, the main part last, and returns the main part's handle.
     *
     * @throws MissingLibraryException when the dynamic loader refuses a part
     */
    static MemorySegment open(LibrarySearch.Found found, int flags, Surroundings surroundings) {
        MemorySegment opened = MemorySegment.NULL;
        for (Path file : found.files()) {
            try {
                opened = DynamicLinker.open(file, flags);
            } catch (DynamicLinker.Refusal refusal) {
                throw notLoadable(found.library(), file, refusal.loaderText(), surroundings);
            }
        }
        return opened;
    }

    static MissingLibraryException notLoadable(
            VendorLibrary library, Path file, String loaderText, Surroundings surroundings) {
        LoadFault fault = LoadFault.of(file, loaderText, library.supply(), surroundings);
        return MissingLibraryException.notLoadable(
                library.title(), file + ", wanted " + library.window(), loaderText, fault);
    }

    /**
     * Checks a version against the library's window.
     *
     * @throws MissingLibraryException when it lies outside and {@code -Dchagres.versions=warn} is not set
     * @throws IllegalArgumentException when the property has another value than {@code strict} or {@code warn}
     */
    static void check(LibrarySearch.Found found, Optional<LibraryVersion> version, Surroundings surroundings) {
        VendorLibrary library = found.library();
        boolean strict = isStrict(surroundings);
        if (version.isEmpty()) {
            Log.logger()
                    .log(
                            System.Logger.Level.WARNING,
                            "{0} at {1} does not tell its version; wanted {2}{3}",
                            library.title(),
                            ForeignText.plain(found.mainFile()),
                            library.window(),
                            library.versionSource().map("; "::concat).orElse(""));
        } else if (!library.window().contains(version.get())) {
            MissingLibraryException wrong = wrongVersion(found, version.get());
            if (strict) {
                throw wrong;
            }
            Log.logger().log(System.Logger.Level.WARNING, wrong.getMessage());
        }
    }

    static MissingLibraryException wrongVersion(LibrarySearch.Found found, LibraryVersion version) {
        VendorLibrary library = found.library();
        String detail = "version " + version + " at " + found.mainFile() + ", wanted " + library.window() + ": "
                + library.side(version);
        String remedy = library.remedy() + "; -D" + VERSIONS_PROPERTY + "=warn tries it all the same";
        return new MissingLibraryException(
                library.title(), new Finding(Reason.WRONG_VERSION, detail, found.passedOver(), "", remedy));
    }

    /**
     * Checks the property where no library is opened whose version it is about.
     *
     * @throws IllegalArgumentException when it has another value than {@code strict} or {@code warn}
     */
    static void requireVersionsProperty(Surroundings surroundings) {
        boolean _ = isStrict(surroundings);
    }

    static boolean isStrict(Surroundings surroundings) {
        String value = surroundings.property(VERSIONS_PROPERTY).orElse("strict");
        return switch (value) {
            case "strict" -> true;
            case "warn" -> false;
            default ->
                throw new IllegalArgumentException(
                        "-D" + VERSIONS_PROPERTY + ": expected strict or warn, got " + ForeignText.quoted(value));
        };
    }
}
