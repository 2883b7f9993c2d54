package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Attempt;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import dev.chagres.bindings.SearchPlaces.Group;
import dev.chagres.bindings.SearchPlaces.Place;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;

/**
 * Finds one of NVIDIA's libraries: the first place that has every part, each of them a shared library for this processor.
 * Parts of two places never mix: two cuDNNs in one process fail in ways that are hard to read.
 */
final class LibrarySearch {

    private static final LoadFault.Supply FETCHED =
            new LoadFault.Supply("native/vendor/fetch.sh", Surroundings.CACHE_ELSEWHERE);

    private final Surroundings surroundings;
    private final SearchPlaces places;

    LibrarySearch(Surroundings surroundings) {
        this.surroundings = surroundings;
        this.places = new SearchPlaces(surroundings);
    }

    /**
     * A library that was found and not yet opened.
     *
     * @param files the parts in the order of opening
     * @param passedOver places before this one that have files of this library which cannot be used
     */
    record Found(VendorLibrary library, String origin, List<Path> files, List<Attempt> passedOver) {
        Found {
            files = List.copyOf(files);
            passedOver = List.copyOf(passedOver);
        }

        Path mainFile() {
            return files.getLast();
        }

        Path folder() {
            return mainFile().resolveSibling("");
        }
    }

    /** What was seen at one place: the files, or why there are none to use. */
    private record Sight(List<Path> files, Reason reason, LoadFault fault) {
        static Sight nothing(VendorLibrary library, String fault) {
            return new Sight(List.of(), Reason.NOT_FOUND, new LoadFault(fault, library.remedy()));
        }

        static Sight broken(LoadFault fault) {
            return new Sight(List.of(), Reason.NOT_LOADABLE, fault);
        }

        static Sight wrong(VendorLibrary library, String fault) {
            return new Sight(List.of(), Reason.WRONG_VERSION, new LoadFault(fault, library.remedy()));
        }

        boolean serves() {
            return !files.isEmpty();
        }
    }

    /**
     * Searches for every library.
     *
     * @throws MissingLibraryException of the first that is not found; the line that mends it brings the others, too
     */
    Map<VendorLibrary, Found> findAll() {
        Map<VendorLibrary, Found> found = new EnumMap<>(VendorLibrary.class);
        Map<VendorLibrary, MissingLibraryException> missing = new EnumMap<>(VendorLibrary.class);
        for (VendorLibrary library : VendorLibrary.values()) {
            try {
                found.put(library, find(library));
            } catch (MissingLibraryException absent) {
                missing.put(library, absent);
            }
        }
        if (!missing.isEmpty()) {
            throw missing.size() == 1 ? missing.values().iterator().next() : together(missing);
        }
        return found;
    }

    /** Whoever lacks several libraries wants one line for all, not one after another. */
    private static MissingLibraryException together(Map<VendorLibrary, MissingLibraryException> missing) {
        MissingLibraryException first = missing.values().iterator().next();
        String others =
                missing.keySet().stream().skip(1).map(VendorLibrary::title).collect(Collectors.joining(", "));
        String packages =
                missing.keySet().stream().map(VendorLibrary::requirement).collect(Collectors.joining(" "));
        return first.withRemedy(
                first.remedy() + "; " + others + " cannot be used either: pip install " + packages + " brings all");
    }

    /**
     * Searches all places.
     *
     * @throws MissingLibraryException when none serves, with every place and what was seen there
     */
    Found find(VendorLibrary library) {
        Trail trail = new Trail();
        Iterator<Group> groups = places.of(library).iterator();
        while (groups.hasNext()) {
            Group group = groups.next();
            if (group.places().isEmpty()) {
                trail.attempts.add(new Attempt(group.name(), group.emptiness()));
            }
            for (Place place : group.places()) {
                Sight sight = look(place, library);
                if (sight.serves()) {
                    return new Found(library, place.origin(), sight.files(), trail.passedOver);
                }
                trail.add(place, sight);
                if (place.isBinding()) {
                    throw missing(
                            library,
                            trail,
                            sight.fault().remedy() + " (now " + place.origin() + " names " + place.path()
                                    + ", and no other place is tried)");
                }
            }
        }
        throw missing(library, trail, trail.remedy.orElseGet(library::remedy));
    }

    /** What a search has seen so far. */
    private static final class Trail {
        private final List<Attempt> attempts = new ArrayList<>();
        private final List<Attempt> passedOver = new ArrayList<>();
        private Reason worst = Reason.NOT_FOUND;
        private Optional<String> remedy = Optional.empty();

        void add(Place place, Sight sight) {
            String fault = sight.fault().cause();
            Attempt attempt = new Attempt(place.origin() + " " + place.path(), fault);
            Attempt last = attempts.isEmpty() ? attempt : attempts.getLast();
            boolean isSame = last.place().startsWith(place.origin() + " ")
                    && last.outcome().equals(fault);
            if (isSame && !attempts.isEmpty()) {
                attempts.set(attempts.size() - 1, new Attempt(last.place() + ", " + place.path(), fault));
            } else {
                attempts.add(attempt);
            }
            if (sight.reason() != Reason.NOT_FOUND) {
                passedOver.add(attempt);
                remedy = remedy.or(() -> Optional.of(sight.fault().remedy()));
                worst = worst == Reason.NOT_FOUND ? sight.reason() : worst;
            }
        }
    }

    private static MissingLibraryException missing(VendorLibrary library, Trail trail, String remedy) {
        String detail = library.mainPart() + ", wanted " + library.window();
        return new MissingLibraryException(
                library.title(), new Finding(trail.worst, detail, trail.attempts, "", remedy));
    }

    /** A file of the wrong version at a place that the user named goes through: opening it says the same with more words. */
    private Sight look(Place place, VendorLibrary library) {
        Sight sight = look(place.path(), library);
        if (sight.serves() && place.origin().equals(SearchPlaces.PINNED)) {
            Optional<LoadFault> fault = sight.files().stream()
                    .flatMap(file -> FileOwnership.fault(file, FETCHED).stream())
                    .findFirst();
            if (fault.isPresent()) {
                return Sight.broken(fault.get());
            }
        }
        if (!sight.serves() || place.isBinding() || !VendorLibraries.isStrict(surroundings)) {
            return sight;
        }
        return FileVersion.of(library, sight.files().getLast())
                .filter(version -> !library.window().contains(version))
                .map(version -> Sight.wrong(
                        library, "version " + version + ", wanted " + library.window() + ": " + library.side(version)))
                .orElse(sight);
    }

    private Sight look(Path path, VendorLibrary library) {
        if (Files.isDirectory(path)) {
            return look(path, path.resolve(library.mainPart()), library);
        }
        if (!Files.exists(path, LinkOption.NOFOLLOW_LINKS)) {
            return Sight.nothing(library, "no such file or folder");
        }
        return look(path.resolveSibling(""), path, library);
    }

    private Sight look(Path folder, Path main, VendorLibrary library) {
        if (!Files.exists(main, LinkOption.NOFOLLOW_LINKS)) {
            return Sight.nothing(library, absence(folder, library.mainPart()));
        }
        List<Path> files = new ArrayList<>();
        List<String> absent = new ArrayList<>();
        for (String part : library.parts().subList(0, library.parts().size() - 1)) {
            List<Path> matches = matches(folder, part);
            files.addAll(matches);
            if (matches.isEmpty()) {
                absent.add(part);
            }
        }
        files.add(main);
        if (!absent.isEmpty()) {
            return Sight.broken(new LoadFault(
                    "has " + main.getFileName() + " but lacks " + String.join(", ", absent), library.remedy()));
        }
        for (Path file : files) {
            Optional<LoadFault> fault = LoadFault.before(file, library.supply(), surroundings);
            if (fault.isPresent()) {
                return Sight.broken(fault.get());
            }
        }
        return new Sight(files, Reason.NOT_FOUND, new LoadFault("", ""));
    }

    /** Says what a folder has instead: often the library for another major version. */
    private static String absence(Path folder, String mainPart) {
        String stem = mainPart.substring(0, mainPart.indexOf(".so") + ".so".length());
        List<String> others = matches(folder, stem + "*").stream()
                .map(file -> String.valueOf(file.getFileName()))
                .toList();
        return others.isEmpty() ? "has no " + mainPart : "has " + String.join(", ", others) + ", not " + mainPart;
    }

    private static List<Path> matches(Path folder, String glob) {
        if (!glob.contains("*")) {
            Path file = folder.resolve(glob);
            return Files.exists(file, LinkOption.NOFOLLOW_LINKS) ? List.of(file) : List.of();
        }
        List<Path> found = new ArrayList<>();
        try (DirectoryStream<Path> stream = Files.newDirectoryStream(folder, glob)) {
            stream.forEach(found::add);
        } catch (IOException unreadable) {
            return List.of();
        }
        found.sort(null);
        return found;
    }
}
