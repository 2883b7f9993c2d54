package dev.chagres.bindings;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The places where one of NVIDIA's libraries may be, in the order in which they are tried. */
final class SearchPlaces {
    /** Who names the places in our own cache. */
    static final String PINNED = "pinned cache";

    /**
     * One place.
     *
     * @param origin who names it, such as {@code -Dchagres.cudnn.path}
     * @param path a folder, or the library's main file
     * @param isBinding the user named exactly this: when it does not serve, no other place is tried
     */
    record Place(String origin, Path path, boolean isBinding) {}

    /**
     * Places of one kind.
     *
     * @param name the kind, as a report of the search calls it
     * @param emptiness why there is no place of this kind on this machine
     */
    record Group(String name, String emptiness, List<Place> places) {
        Group {
            places = List.copyOf(places);
        }
    }

    private final Surroundings surroundings;

    SearchPlaces(Surroundings surroundings) {
        this.surroundings = surroundings;
    }

    /** All groups in order; a later group is only looked at when the stream gets there: asking Python takes a while. */
    Stream<Group> of(VendorLibrary library) {
        return Stream.<Function<VendorLibrary, Group>>of(
                        this::named, this::homes, this::python, this::toolkits, this::pinned, this::loaderPath)
                .map(group -> group.apply(library));
    }

    private Group named(VendorLibrary library) {
        List<Place> places = new ArrayList<>();
        surroundings
                .property(library.property())
                .ifPresent(value -> places.add(new Place("-D" + library.property(), path(value), true)));
        surroundings
                .variable(library.variable())
                .ifPresent(value -> places.add(new Place(library.variable(), path(value), true)));
        return new Group("-D" + library.property() + ", " + library.variable(), "not set", places);
    }

    private Group homes(VendorLibrary library) {
        List<Place> places = new ArrayList<>();
        for (String variable : library.homes()) {
            surroundings.variable(variable).ifPresent(value -> {
                Path home = path(value);
                places.add(new Place(variable, home, false));
                if (Files.isDirectory(home)) {
                    libraryFolders(home).forEach(folder -> places.add(new Place(variable, folder, false)));
                }
            });
        }
        return new Group(String.join(", ", library.homes()), "not set", places);
    }

    private Group python(VendorLibrary library) {
        List<Place> places = new ArrayList<>();
        Map<Path, String> sites = PythonFolders.of(surroundings);
        sites.forEach((site, origin) -> places.addAll(below(site, origin, library)));
        String seen = sites.isEmpty()
                ? "none found"
                : "none has the package: "
                        + sites.keySet().stream().map(Path::toString).collect(Collectors.joining(", "));
        return new Group("Python (VIRTUAL_ENV, CONDA_PREFIX, python3, user, system)", seen, places);
    }

    private Group toolkits(VendorLibrary library) {
        List<Place> places = new ArrayList<>();
        for (Path toolkit : children(surroundings.absolute("/usr/local"), "cuda*")) {
            libraryFolders(toolkit).forEach(folder -> places.add(new Place("CUDA toolkit", folder, false)));
        }
        return new Group("CUDA toolkit /usr/local/cuda*", "no such folder", places);
    }

    private Group pinned(VendorLibrary library) {
        Path vendor = surroundings.cache().resolve("vendor");
        List<Place> places = new ArrayList<>(below(vendor, PINNED, library));
        List<Path> fetched = new ArrayList<>(children(vendor, "*"));
        fetched.sort(Comparator.comparing(SearchPlaces::modified).reversed());
        fetched.forEach(child -> places.addAll(below(child, PINNED, library)));
        String seen =
                Files.isDirectory(vendor) ? "has no " + library.pythonFolders().getFirst() : "no such folder";
        return new Group(PINNED + " " + vendor, seen, places);
    }

    /** Fetched folders are named by a hash; the latest is the one that the latest pins brought. */
    private static long modified(Path folder) {
        return folder.toFile().lastModified();
    }

    private Group loaderPath(VendorLibrary library) {
        List<Place> places = new ArrayList<>();
        surroundings.variable("LD_LIBRARY_PATH").ifPresent(value -> {
            for (String folder : value.split(":", -1)) {
                if (!folder.isEmpty()) {
                    places.add(new Place("LD_LIBRARY_PATH", path(folder), false));
                }
            }
        });
        loaderFolders().forEach(folder -> places.add(new Place("loader's path", folder, false)));
        return new Group("loader's path for " + library.mainPart(), "no folder", places);
    }

    private static List<Place> below(Path site, String origin, VendorLibrary library) {
        return library.pythonFolders().stream()
                .map(site::resolve)
                .filter(Files::isDirectory)
                .map(folder -> new Place(origin, folder, false))
                .toList();
    }

    /** Existing library folders of an installation, without those that are links to one named before. */
    private List<Path> libraryFolders(Path home) {
        return Stream.of("lib64", "lib", "targets/" + surroundings.processor() + "-linux/lib")
                .map(home::resolve)
                .filter(Files::isDirectory)
                .toList();
    }

    /** What the dynamic loader searches: the folders of {@code /etc/ld.so.conf}, then the system's. */
    private List<Path> loaderFolders() {
        List<Path> folders = new ArrayList<>();
        readLoaderConfiguration(surroundings.absolute("/etc/ld.so.conf"), folders);
        children(surroundings.absolute("/etc/ld.so.conf.d"), "*.conf")
                .reversed()
                .forEach(file -> readLoaderConfiguration(file, folders));
        String triplet = surroundings.processor() + "-linux-gnu";
        for (String folder : List.of("/usr/lib/" + triplet, "/usr/lib64", "/usr/lib", "/usr/local/lib")) {
            folders.add(surroundings.absolute(folder));
        }
        return folders.stream().filter(Files::isDirectory).distinct().toList();
    }

    private void readLoaderConfiguration(Path file, List<Path> folders) {
        try (Stream<String> lines = Files.lines(file, StandardCharsets.ISO_8859_1)) {
            lines.map(String::strip)
                    .filter(line -> line.startsWith("/"))
                    .forEach(line -> folders.add(surroundings.absolute(line)));
        } catch (IOException | UncheckedIOException unreadable) {
            // The loader, too, goes on without a configuration file that it cannot read.
        }
    }

    /** Folders or files that match, newest version first. */
    private static List<Path> children(Path folder, String glob) {
        List<Path> found = new ArrayList<>();
        if (Files.isDirectory(folder)) {
            try (DirectoryStream<Path> stream = Files.newDirectoryStream(folder, glob)) {
                stream.forEach(found::add);
            } catch (IOException unreadable) {
                return List.of();
            }
        }
        found.sort(null);
        return found.reversed();
    }

    private static Path path(String value) {
        try {
            return Path.of(value).toAbsolutePath();
        } catch (InvalidPathException invalid) {
            throw new IllegalArgumentException(
                    "expected the path of a file or folder, got " + ForeignText.quoted(value), invalid);
        }
    }
}
