package dev.chagres.bindings;

import dev.chagres.bindings.Doctor.Row;
import dev.chagres.bindings.Doctor.State;
import dev.chagres.bindings.LibrarySearch.Found;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Looks at every library by itself, whether the provider needs it or not. Libraries are opened outside the global scope, so
 * that an unneeded one cannot disturb those that are opened for real afterwards.
 */
final class Examination {

    private static final String NOTHING = "-";
    private static final int CUDA_DRIVER_WANTED = 13000;

    private final Surroundings surroundings;
    private final Provider provider;
    private @Nullable Path runtimeFolder;

    Examination(Surroundings surroundings, Provider provider) {
        this.surroundings = surroundings;
        this.provider = provider;
    }

    List<String> facts(Driver driver) {
        Path cache = surroundings.cache();
        String flag = NativeAccess.isGranted() ? "set" : "not set: start Java with " + NativeAccess.flag();
        return List.of(
                "driver: " + driver.description(),
                "platform: " + surroundings.platform() + ", Java " + Runtime.version(),
                "cache: " + ForeignText.plain(cache) + cacheFault(cache),
                "native access: " + flag);
    }

    private String cacheFault(Path cache) {
        String fault = isWritable(cache)
                ? MountPoint.noExec(cache, surroundings)
                        .map(mount ->
                                "is on the file system " + mount + ", mounted noexec: no library in it can be opened")
                        .orElse("")
                : "cannot be written";
        return fault.isEmpty() ? "" : ": " + fault + "; name another with " + Surroundings.CACHE_ELSEWHERE;
    }

    private static boolean isWritable(Path folder) {
        Path existing = folder;
        while (existing != null && !Files.exists(existing)) {
            existing = existing.getParent();
        }
        return existing != null && Files.isDirectory(existing) && Files.isWritable(existing);
    }

    List<Row> rows(Driver driver) {
        List<Row> rows = new ArrayList<>();
        rows.add(driver(driver));
        rows.addAll(own());
        for (VendorLibrary library : VendorLibrary.values()) {
            rows.add(vendor(library));
        }
        rows.add(headers());
        return rows;
    }

    private boolean isCuda() {
        return provider == Provider.CUDA;
    }

    private Row driver(Driver driver) {
        String wanted = "CUDA >= " + CUDA_DRIVER_WANTED / 1000 + "." + CUDA_DRIVER_WANTED % 1000 / 10;
        String remedy = "install NVIDIA's driver 580 or newer (nvidia-smi shows the present one)"
                + (isCuda() ? ", or run on the CPU with -D" + Provider.PROPERTY + "=reference" : "");
        if (!driver.isUsable()) {
            return new Row(
                    "NVIDIA driver",
                    State.FAILED,
                    isCuda(),
                    NOTHING,
                    wanted,
                    NOTHING,
                    driver.description(),
                    remedy,
                    List.of());
        }
        boolean isNew = driver.cudaVersion() >= CUDA_DRIVER_WANTED;
        String problem = isNew ? "" : driver.description() + " is too old for the libraries";
        State state = isNew ? State.OK : State.FAILED;
        String version = "CUDA " + driver.cudaVersionText();
        String mending = isNew ? "" : remedy;
        return new Row("NVIDIA driver", state, isCuda(), version, wanted, Driver.LIBRARY, problem, mending, List.of());
    }

    private List<Row> own() {
        OwnLibraries own;
        try {
            own = OwnLibraries.locate(surroundings);
        } catch (MissingLibraryException missing) {
            return List.of(failed(missing, true, NOTHING, List.of()));
        }
        List<Row> rows = new ArrayList<>();
        rows.add(file(own, "guard", own.guard(), true));
        rows.add(file(own, "operations", own.operations(), isCuda()));
        rows.add(file(own, "reference", own.reference(), !isCuda()));
        rows.add(openBlas(own));
        return rows;
    }

    private static Row file(OwnLibraries own, String name, Path file, boolean isNeeded) {
        Optional<LoadFault> fault = own.fault(file);
        return new Row(
                name,
                fault.isEmpty() ? State.OK : State.FAILED,
                isNeeded,
                NOTHING,
                NOTHING,
                file.toString(),
                fault.map(found -> file + ": " + found.cause()).orElse(""),
                fault.map(LoadFault::remedy).orElse(""),
                List.of());
    }

    private Row openBlas(OwnLibraries own) {
        OpenBlas found = OpenBlas.find(own);
        return new Row(
                "OpenBLAS",
                found.place().isPresent() ? State.OK : State.FAILED,
                !isCuda(),
                NOTHING,
                NOTHING,
                found.place().orElse(NOTHING),
                found.problem(),
                found.remedy(),
                List.of());
    }

    private Row vendor(VendorLibrary library) {
        String wanted = library.window().toString();
        try {
            Found found = new LibrarySearch(surroundings).find(library);
            if (library == VendorLibrary.CUDA_RUNTIME) {
                runtimeFolder = found.folder();
            }
            MemorySegment opened = VendorLibraries.open(found, DynamicLinker.LAZY, surroundings);
            Optional<LibraryVersion> version = VersionReader.read(found, opened);
            return opened(found, version, wanted);
        } catch (MissingLibraryException missing) {
            boolean isBrought = missing.remedy().contains(library.requirement());
            return failed(missing, isCuda(), wanted, isBrought ? packages(library) : List.of());
        } catch (IllegalArgumentException invalid) {
            String text = String.valueOf(invalid.getMessage());
            return new Row(
                    library.title(),
                    State.FAILED,
                    isCuda(),
                    NOTHING,
                    wanted,
                    NOTHING,
                    text,
                    library.remedy(),
                    List.of());
        }
    }

    /** What pip brings; nothing where a property or variable names the place, for no other is then looked at. */
    private List<String> packages(VendorLibrary library) {
        return isNamed(library.property(), library.variable()) ? List.of() : List.of(library.requirement());
    }

    private boolean isNamed(String property, String variable) {
        return surroundings.property(property).isPresent()
                || surroundings.variable(variable).isPresent();
    }

    private Row opened(Found found, Optional<LibraryVersion> version, String wanted) {
        VendorLibrary library = found.library();
        String place = found.mainFile().toString();
        String told = version.map(LibraryVersion::toString).orElse("unknown");
        if (version.isPresent() && !library.window().contains(version.get())) {
            MissingLibraryException wrong = VendorLibraries.wrongVersion(found, version.get());
            State state = VendorLibraries.isStrict(surroundings) ? State.FAILED : State.WARNING;
            return new Row(
                    library.title(),
                    state,
                    isCuda(),
                    told,
                    wanted,
                    place,
                    text(wrong),
                    wrong.remedy(),
                    packages(library));
        }
        String passedOver = found.passedOver().stream()
                .map(attempt -> "passed over " + attempt)
                .collect(Collectors.joining("\n"));
        String source = library.versionSource().map(": "::concat).orElse("");
        String problem = version.isPresent() ? passedOver : "does not tell its version" + source + "\n" + passedOver;
        State state = problem.isBlank() ? State.OK : State.WARNING;
        boolean isUntold = version.isEmpty() && library.versionSource().isPresent();
        String remedy = problem.isBlank()
                ? ""
                : (isUntold ? "copy the folder " + library.packageInfo() + " there, or " : "") + library.remedy();
        return new Row(library.title(), state, isCuda(), told, wanted, place, problem.strip(), remedy, List.of());
    }

    private Row headers() {
        String wanted = "CUDA " + CudaHeaders.WANTED_MAJOR;
        Path beside = runtimeFolder == null ? surroundings.absolute("/usr/local/cuda/lib64") : runtimeFolder;
        try {
            Path folder = CudaHeaders.find(surroundings, beside);
            return new Row(CudaHeaders.NAME, State.OK, isCuda(), wanted, wanted, folder.toString(), "", "", List.of());
        } catch (MissingLibraryException missing) {
            boolean isNamed = isNamed(CudaHeaders.PROPERTY, CudaHeaders.VARIABLE);
            return failed(missing, isCuda(), wanted, isNamed ? List.of() : CudaHeaders.REQUIREMENTS);
        }
    }

    private static Row failed(MissingLibraryException missing, boolean isNeeded, String wanted, List<String> packages) {
        return new Row(
                missing.library(),
                State.FAILED,
                isNeeded,
                NOTHING,
                wanted,
                NOTHING,
                text(missing),
                missing.remedy(),
                packages);
    }

    /** The exception's text without its first word and last line: the table names the library, the remedy has its own. */
    private static String text(MissingLibraryException missing) {
        String message = String.valueOf(missing.getMessage());
        return message.substring(missing.library().length() + 2, message.lastIndexOf("\n  to mend it: "));
    }
}
