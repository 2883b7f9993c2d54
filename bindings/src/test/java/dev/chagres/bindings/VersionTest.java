package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class VersionTest {

    @ParameterizedTest
    @CsvSource({"9.19.0.56,9.19.0", "2.20,2.20.0", "2.20.2+cu13,2.20.2", "13.0.88,13.0.88"})
    void numbersAtTheFrontAreRead(String text, String expected) {
        assertEquals(Optional.of(expected), LibraryVersion.parse(text).map(LibraryVersion::toString));
    }

    @ParameterizedTest
    @CsvSource({"unknown", "v2.20", "2", "''"})
    void textWithoutNumbersIsNoVersion(String text) {
        assertEquals(Optional.empty(), LibraryVersion.parse(text));
    }

    @Test
    void versionsAreOrderedByNumberNotByText() {
        List<LibraryVersion> ordered = List.of(
                new LibraryVersion(2, 9, 9),
                new LibraryVersion(2, 20, 0),
                new LibraryVersion(2, 20, 2),
                new LibraryVersion(10, 0, 0));
        assertEquals(ordered, List.copyOf(new TreeSet<>(ordered.reversed())));
    }

    @ParameterizedTest
    @CsvSource({"9.18.9,false", "9.19.0,true", "9.99.99,true", "10.0.0,false"})
    void theWindowIsHalfOpen(String version, boolean expected) {
        assertEquals(
                expected,
                VersionWindow.of(9, 19, 10, 0)
                        .contains(LibraryVersion.parse(version).orElseThrow()));
    }

    @Test
    void theWindowSaysWhichSideMustMove() {
        VersionWindow window = VersionWindow.of(2, 20, 2, 21);
        assertEquals("2.20 <= version < 2.21", window.toString());
        assertEquals("TE is too old: upgrade it", window.side("TE", new LibraryVersion(2, 19, 9)));
        assertEquals(
                "TE is too new: downgrade it, or upgrade Chagres", window.side("TE", new LibraryVersion(2, 21, 0)));
    }

    @Test
    void anEmptyWindowIsRefused() {
        IllegalArgumentException refused =
                assertThrows(IllegalArgumentException.class, () -> VersionWindow.of(3, 0, 3, 0));
        assertEquals("from: expected a version below 3.0.0, got 3.0.0", refused.getMessage());
    }

    @ParameterizedTest
    @CsvSource({
        "transformer_engine_cu13-2.20.2.dist-info,transformer_engine/wheel_lib,2.20.2",
        "transformer_engine-2.19.0.dist-info,transformer_engine,2.19.0",
        "transformer_engine_cu13-2.20.2.dist-info,.,2.20.2"
    })
    void transformerEnginesVersionIsItsPackages(String info, String folder, String expected, @TempDir Path site)
            throws IOException {
        Files.createDirectories(site.resolve(info));
        Path library = Files.createDirectories(site.resolve(folder)).resolve("libtransformer_engine.so");
        assertEquals(
                Optional.of(expected),
                FileVersion.of(VendorLibrary.TRANSFORMER_ENGINE, Files.createFile(library))
                        .map(LibraryVersion::toString));
    }

    @Test
    void aLibraryWithoutAPackageHasNoKnownVersion(@TempDir Path folder) throws IOException {
        Files.createDirectories(folder.resolve("transformer_engine-2.20.2.dist-info"));
        Path deep = Files.createDirectories(folder.resolve("a/b/c/d")).resolve("libtransformer_engine.so");
        Files.createFile(deep);
        assertEquals(Optional.empty(), FileVersion.of(VendorLibrary.TRANSFORMER_ENGINE, deep));
        assertEquals(Optional.empty(), FileVersion.of(VendorLibrary.NCCL, deep));
        assertEquals(Optional.empty(), FileVersion.of(VendorLibrary.NCCL, folder.resolve("absent")));
    }

    @ParameterizedTest
    @CsvSource({
        "CUDNN,libcudnn.so.9,libcudnn.so.9.14.0,9.14.0",
        "NCCL,libnccl.so.2,libnccl.so.2.28.3,2.28.3",
        "CUDA_RUNTIME,libcudart.so.13,libcudart.so.13.0.96,13.0.96"
    })
    void aLinkLeadsToTheVersion(VendorLibrary library, String link, String file, String expected, @TempDir Path folder)
            throws IOException {
        Files.createFile(folder.resolve(file));
        Path linked = Files.createSymbolicLink(folder.resolve(link), Path.of(file));
        assertEquals(Optional.of(expected), FileVersion.of(library, linked).map(LibraryVersion::toString));
    }

    @ParameterizedTest
    @CsvSource({
        "CUDNN,nvidia_cudnn_cu13-9.19.0.56.dist-info,nvidia/cudnn/lib,9.19.0",
        "NCCL,nvidia_nccl_cu13-2.28.9.dist-info,nvidia/nccl/lib,2.28.9",
        "CUBLAS,nvidia_cublas-13.1.0.3.dist-info,nvidia/cu13/lib,13.1.0"
    })
    void thePackageTellsTheVersion(
            VendorLibrary library, String info, String folder, String expected, @TempDir Path site) throws IOException {
        Files.createDirectories(site.resolve(info));
        Path file = Files.createDirectories(site.resolve(folder)).resolve(library.mainPart());
        Files.createFile(file);
        assertEquals(Optional.of(expected), FileVersion.of(library, file).map(LibraryVersion::toString));
    }

    @Test
    void remediesNameThePinnedVersions() throws IOException {
        List<String> pins;
        try (Stream<String> lines = Files.lines(VendorFolder.pins())) {
            pins = lines.map(line -> line.split(" ", 2)[0]).toList();
        }
        for (VendorLibrary library : VendorLibrary.values()) {
            assertEquals(
                    List.of(library.requirement()),
                    pins.stream().filter(library.requirement()::equals).toList(),
                    library.requirement() + " is not in " + VendorFolder.pins());
            LibraryVersion pinned = LibraryVersion.parse(library.requirement().split("==", 2)[1])
                    .orElseThrow();
            assertTrue(library.window().contains(pinned), pinned + " lies outside " + library.window());
        }
        for (String word : CudaHeaders.REMEDY.split(" ", -1)) {
            if (word.contains("==")) {
                String pin = word.replace(",", "");
                assertEquals(List.of(pin), pins.stream().filter(pin::equals).toList());
            }
        }
    }
}
