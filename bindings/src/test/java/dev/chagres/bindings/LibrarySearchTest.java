package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.LibrarySearch.Found;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

@Tag("L0")
class LibrarySearchTest {

    @TempDir
    private Path root;

    private FakeMachine machine;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(root);
    }

    private Found find(VendorLibrary library) {
        return new LibrarySearch(machine.surroundings()).find(library);
    }

    private MissingLibraryException missing(VendorLibrary library) {
        return assertThrows(MissingLibraryException.class, () -> find(library));
    }

    /** Installs a library everywhere it may be; the result has origins with their folders in the expected order. */
    private Map<Path, String> installEverywhere(VendorLibrary library) throws IOException {
        Map<Path, String> places = new LinkedHashMap<>();
        String below = library.pythonFolders().getFirst();
        places.put(root.resolve("by-property"), "-D" + library.property());
        machine.properties.put(library.property(), root.resolve("by-property").toString());
        places.put(root.resolve("by-variable"), library.variable());
        machine.environment.put(library.variable(), root.resolve("by-variable").toString());
        for (String home : library.homes()) {
            machine.environment.put(home, root.resolve(home).toString());
            places.put(root.resolve(home), home);
            places.put(root.resolve(home).resolve("lib64"), home);
            places.put(root.resolve(home).resolve("lib"), home);
        }
        for (String prefix : List.of("VIRTUAL_ENV", "CONDA_PREFIX")) {
            machine.environment.put(prefix, root.resolve(prefix).toString());
            places.put(root.resolve(prefix + "/lib/python3.13/site-packages/" + below), prefix);
        }
        machine.python.add(root.resolve("python/site-packages"));
        places.put(root.resolve("python/site-packages/" + below), "python3");
        places.put(root.resolve("home/user/.local/lib/python3.12/site-packages/" + below), "user's Python");
        places.put(root.resolve("usr/local/lib/python3.12/dist-packages/" + below), "system's Python");
        places.put(root.resolve("usr/lib/python3/dist-packages/" + below), "system's Python");
        places.put(root.resolve("usr/lib/python3.11/site-packages/" + below), "system's Python");
        places.put(root.resolve("usr/local/cuda-13.1/lib64"), "CUDA toolkit");
        places.put(root.resolve("usr/local/cuda-13.0/lib64"), "CUDA toolkit");
        places.put(root.resolve("home/user/.cache/chagres/vendor/abc/" + below), "pinned cache");
        machine.environment.put("LD_LIBRARY_PATH", ":" + root.resolve("preset") + ":");
        places.put(root.resolve("preset"), "LD_LIBRARY_PATH");
        Files.createDirectories(root.resolve("etc/ld.so.conf.d"));
        Files.writeString(root.resolve("etc/ld.so.conf"), "# comment\ninclude /etc/ld.so.conf.d/*.conf\n");
        Files.writeString(root.resolve("etc/ld.so.conf.d/cuda.conf"), "/opt/from/conf\n");
        places.put(root.resolve("opt/from/conf"), "loader's path");
        places.put(root.resolve("usr/lib/x86_64-linux-gnu"), "loader's path");
        for (Path place : places.keySet()) {
            FakeLibrary.writeHeaders(library, place);
        }
        return places;
    }

    @ParameterizedTest
    @EnumSource(VendorLibrary.class)
    void placesAreTriedInOrder(VendorLibrary library) throws IOException {
        machine.properties.put("os.arch", "amd64");
        List<Map.Entry<Path, String>> places =
                new ArrayList<>(installEverywhere(library).entrySet());
        for (Map.Entry<Path, String> place : places) {
            if (machine.properties.containsKey(library.property())) {
                assertPlace(place, library);
                machine.properties.remove(library.property());
            } else if (machine.environment.containsKey(library.variable())) {
                assertPlace(place, library);
                machine.environment.remove(library.variable());
            } else {
                assertPlace(place, library);
            }
            for (String part : library.parts()) {
                Files.delete(place.getKey().resolve(part.replace("*", "0")));
            }
        }
        MissingLibraryException missing = missing(library);
        assertEquals(Reason.NOT_FOUND, missing.reason());
        for (Map.Entry<Path, String> place : places.subList(2, places.size())) {
            assertTrue(
                    missing.attempts().stream()
                            .anyMatch(attempt -> attempt.place().startsWith(place.getValue())
                                    && attempt.place().contains(place.getKey().toString())),
                    place + " is not in:\n" + missing.getMessage());
        }
    }

    private void assertPlace(Map.Entry<Path, String> expected, VendorLibrary library) {
        Found found = find(library);
        assertEquals(expected.getKey(), found.folder());
        assertEquals(expected.getValue(), found.origin());
        assertEquals(library.parts().size(), found.files().size());
        assertEquals(expected.getKey().resolve(library.mainPart()), found.mainFile());
        assertEquals(List.of(), found.passedOver());
    }

    @Test
    void anEmptyMachineIsToldAllThatWasTried() {
        machine.folder("usr/lib");
        MissingLibraryException missing = missing(VendorLibrary.CUDNN);
        assertEquals("""
                cuDNN: NOT_FOUND: libcudnn.so.9, wanted 9.19 <= version < 10.0
                  tried -Dchagres.cudnn.path, CHAGRES_CUDNN_PATH: not set
                  tried CUDNN_HOME, CUDNN_PATH, CUDA_HOME, CUDA_PATH: not set
                  tried Python (VIRTUAL_ENV, CONDA_PREFIX, python3, user, system): none found
                  tried CUDA toolkit /usr/local/cuda*: no such folder
                  tried pinned cache ROOT/home/user/.cache/chagres/vendor: no such folder
                  tried loader's path ROOT/usr/lib: has no libcudnn.so.9
                  to mend it: pip install nvidia-cudnn-cu13==9.19.0.56, or name its folder with -Dchagres.cudnn.path=DIR""".replace("ROOT", root.toString()), missing.getMessage());
    }

    @Test
    void pythonIsAskedOnlyWhenTheSearchGetsThere() throws IOException {
        Path folder = machine.folder("named");
        FakeLibrary.writeHeaders(VendorLibrary.NCCL, folder);
        machine.properties.put(VendorLibrary.NCCL.property(), folder.toString());
        Surroundings surroundings = new Surroundings(machine.properties::get, machine.environment::get, root, () -> {
            throw new AssertionError("Python was asked");
        });
        assertEquals(
                folder, new LibrarySearch(surroundings).find(VendorLibrary.NCCL).folder());
    }

    @Test
    void aPropertyMayNameTheFileItself() throws IOException {
        Path folder = machine.folder("named");
        FakeLibrary.writeHeaders(VendorLibrary.CUDNN, folder);
        Path renamed = folder.resolve("libcudnn-mine.so");
        Files.move(folder.resolve("libcudnn.so.9"), renamed);
        machine.properties.put(VendorLibrary.CUDNN.property(), renamed.toString());
        Found found = find(VendorLibrary.CUDNN);
        assertEquals(renamed, found.mainFile());
        assertEquals(8, found.files().size());
    }

    @Test
    void aNamedPlaceThatDoesNotServeEndsTheSearch() throws IOException {
        FakeLibrary.writeHeaders(VendorLibrary.NCCL, machine.folder("usr/lib"));
        machine.environment.put("CHAGRES_NCCL_PATH", machine.folder("empty").toString());
        MissingLibraryException missing = missing(VendorLibrary.NCCL);
        assertEquals(
                "NCCL: NOT_FOUND: libnccl.so.2, wanted 2.28 <= version < 3.0\n  tried CHAGRES_NCCL_PATH "
                        + root.resolve("empty") + ": has no libnccl.so.2\n  to mend it: pip install"
                        + " nvidia-nccl-cu13==2.28.9, or name its folder with -Dchagres.nccl.path=DIR (now"
                        + " CHAGRES_NCCL_PATH names " + root.resolve("empty") + ", and no other place is tried)",
                missing.getMessage());
        machine.environment.put("CHAGRES_NCCL_PATH", root.resolve("absent").toString());
        assertTrue(missing(VendorLibrary.NCCL).getMessage().contains("absent: no such file or folder"));
    }

    @Test
    void partsOfTwoFoldersNeverMix() throws IOException {
        Path first = machine.folder("usr/local/cuda/lib64");
        Path second = machine.folder("usr/lib");
        FakeLibrary.writeHeaders(VendorLibrary.CUDNN, first);
        FakeLibrary.writeHeaders(VendorLibrary.CUDNN, second);
        Files.delete(first.resolve("libcudnn_adv.so.9"));
        Files.delete(first.resolve("libcudnn_ops.so.9"));
        Found found = find(VendorLibrary.CUDNN);
        assertTrue(found.files().stream().allMatch(file -> file.startsWith(second)), found.toString());
        assertEquals(
                "[CUDA toolkit " + first + ": has libcudnn.so.9 but lacks libcudnn_ops.so.9, libcudnn_adv.so.9]",
                found.passedOver().toString());
    }

    @Test
    void theLatestFetchedLibrariesAreTaken() throws IOException {
        Path older = machine.folder("home/user/.cache/chagres/vendor/fff/nvidia/nccl/lib");
        Path newer = machine.folder("home/user/.cache/chagres/vendor/aaa/nvidia/nccl/lib");
        FakeLibrary.writeHeaders(VendorLibrary.NCCL, older);
        FakeLibrary.writeHeaders(VendorLibrary.NCCL, newer);
        Path vendor = root.resolve("home/user/.cache/chagres/vendor");
        Files.setLastModifiedTime(vendor.resolve("fff"), FileTime.fromMillis(1_000_000));
        Files.setLastModifiedTime(vendor.resolve("aaa"), FileTime.fromMillis(2_000_000));
        assertEquals(newer, find(VendorLibrary.NCCL).folder());
    }

    @Test
    void aLibraryForAnotherCudaIsNamed() throws IOException {
        Files.createFile(machine.folder("usr/lib").resolve("libcudart.so.12"));
        String message = String.valueOf(missing(VendorLibrary.CUDA_RUNTIME).getMessage());
        assertTrue(message.contains("has libcudart.so.12, not libcudart.so.13"), message);
    }

    @Test
    void brokenFilesArePassedOverAndSaidInTheEnd() throws IOException {
        Path toolkit = machine.folder("usr/local/cuda/lib64");
        Files.writeString(toolkit.resolve("libnccl.so.2"), "version https://git-lfs.github.com/spec/v1\n");
        MissingLibraryException missing = missing(VendorLibrary.NCCL);
        assertEquals(Reason.NOT_LOADABLE, missing.reason());
        assertTrue(
                missing.getMessage()
                        .contains(
                                "CUDA toolkit " + toolkit + ": libnccl.so.2 is not a shared library (no ELF header)\n"),
                missing.getMessage());

        Path later = machine.folder("usr/lib");
        FakeLibrary.writeHeaders(VendorLibrary.NCCL, later);
        Found found = find(VendorLibrary.NCCL);
        assertEquals(later, found.folder());
        assertEquals(1, found.passedOver().size());
    }

    @Test
    void anotherVersionIsPassedOverForTheWantedOne() throws IOException {
        Path toolkit = machine.folder("usr/local/cuda/lib64");
        FakeLibrary.writeHeaders(VendorLibrary.CUDNN, toolkit);
        Files.move(toolkit.resolve("libcudnn.so.9"), toolkit.resolve("libcudnn.so.9.14.0"));
        Files.createSymbolicLink(toolkit.resolve("libcudnn.so.9"), Path.of("libcudnn.so.9.14.0"));
        String said = "CUDA toolkit " + toolkit
                + ": version 9.14.0, wanted 9.19 <= version < 10.0: cuDNN is too old: upgrade it";

        MissingLibraryException missing = missing(VendorLibrary.CUDNN);
        assertEquals(Reason.WRONG_VERSION, missing.reason());
        assertTrue(missing.getMessage().contains(said), missing.getMessage());

        Path later = machine.folder("usr/lib");
        FakeLibrary.writeHeaders(VendorLibrary.CUDNN, later);
        assertEquals(later, find(VendorLibrary.CUDNN).folder());
        assertEquals("[" + said + "]", find(VendorLibrary.CUDNN).passedOver().toString());

        machine.properties.put(VendorLibraries.VERSIONS_PROPERTY, "warn");
        assertEquals(toolkit, find(VendorLibrary.CUDNN).folder());
        machine.properties.remove(VendorLibraries.VERSIONS_PROPERTY);
        machine.properties.put(VendorLibrary.CUDNN.property(), toolkit.toString());
        assertEquals(toolkit, find(VendorLibrary.CUDNN).folder());
    }

    @Test
    void danglingLinksAndFoldersInPlaceOfFilesAreBroken() throws IOException {
        Path toolkit = machine.folder("usr/local/cuda/lib64");
        Path link = Files.createSymbolicLink(toolkit.resolve("libnccl.so.2"), Path.of("libnccl.so.2.28.9"));
        assertTrue(missing(VendorLibrary.NCCL).getMessage().contains("libnccl.so.2 is a symbolic link to nothing"));
        Files.delete(link);
        Files.createDirectory(link);
        assertTrue(missing(VendorLibrary.NCCL).getMessage().contains("libnccl.so.2 is not a file"));
    }

    @Test
    void linksToFilesInAnotherFolderAreFollowed() throws IOException {
        Path real = machine.folder("store");
        Path farm = machine.folder("usr/local/cuda/lib64");
        FakeLibrary.writeHeaders(VendorLibrary.CUBLAS, real);
        for (String part : VendorLibrary.CUBLAS.parts()) {
            Files.createSymbolicLink(farm.resolve(part), real.resolve(part));
        }
        assertEquals(farm, find(VendorLibrary.CUBLAS).folder());
    }

    @Test
    void nvrtcsBuiltinsOfEveryMinorVersionBelongToIt() throws IOException {
        Path toolkit = machine.folder("usr/local/cuda/lib64");
        FakeLibrary.writeHeaders(VendorLibrary.NVRTC, toolkit);
        Files.copy(toolkit.resolve("libnvrtc.so.13"), toolkit.resolve("libnvrtc-builtins.so.13.1"));
        Files.copy(toolkit.resolve("libnvrtc.so.13"), toolkit.resolve("libnvrtc-builtins.alt.so.13.1"));
        assertEquals(
                List.of("libnvrtc-builtins.so.13.0", "libnvrtc-builtins.so.13.1", "libnvrtc.so.13"),
                find(VendorLibrary.NVRTC).files().stream()
                        .map(file -> String.valueOf(file.getFileName()))
                        .toList());
    }

    @Test
    void aPathThatIsNoneIsRefused() {
        machine.properties.put("chagres.te.path", "a\0b");
        IllegalArgumentException refused =
                assertThrows(IllegalArgumentException.class, () -> find(VendorLibrary.TRANSFORMER_ENGINE));
        assertEquals("expected the path of a file or folder, got \"a\\u0000b\"", refused.getMessage());
    }

    @Test
    void theInterpretersFoldersAreAbsoluteAndWithoutTheStandardLibrary() {
        List<Path> folders = PythonFolders.ofInterpreter();
        assertTrue(folders.stream().allMatch(Path::isAbsolute), folders.toString());
        assertFalse(folders.stream().anyMatch(folder -> folder.endsWith("lib-dynload")), folders.toString());
    }
}
