package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Doctor.Report;
import dev.chagres.bindings.Doctor.Row;
import dev.chagres.bindings.Doctor.State;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The doctor over machines on which one thing is wrong; NVIDIA's libraries are stand-ins from the C compiler. */
@Tag("L0")
class DoctorTest {

    private static final Driver DRIVER = new Driver(8, 13000, "NVIDIA driver for CUDA 13.0, 8 GPU(s)");
    private static final Driver NO_DRIVER = new Driver(0, 0, "no NVIDIA driver: libcuda.so.1: not there");

    @TempDir
    private static Path compiled;

    @TempDir
    private Path root;

    private FakeMachine machine;

    @BeforeAll
    static void compileStandIns() throws IOException {
        for (VendorLibrary library : VendorLibrary.values()) {
            Path folder = Files.createDirectories(compiled.resolve(library.name()));
            FakeLibrary.compile(library, folder, library.window().from());
        }
        Path needed = compiled.resolve("libneeded.so");
        FakeLibrary.compile(needed, "int needed;");
        FakeLibrary.compile(
                compiled.resolve("refused.so"), "int x;", "-Wl,--no-as-needed", "-L" + compiled, "-lneeded");
        Files.delete(needed);
    }

    /** A machine with everything in one Python environment. */
    @BeforeEach
    void installEverything() throws IOException {
        machine = new FakeMachine(root);
        machine.environment.put("VIRTUAL_ENV", root.resolve("venv").toString());
        machine.properties.put("chagres.native.path", ForkedJvm.nativeFolder().toString());
        machine.properties.put("chagres.cache", root.resolve("cache").toString());
        for (VendorLibrary library : VendorLibrary.values()) {
            Path folder = Files.createDirectories(folder(library));
            try (Stream<Path> files = Files.list(compiled.resolve(library.name()))) {
                for (Path file : files.toList()) {
                    Files.copy(file, folder.resolve(file.getFileName()));
                }
            }
        }
        setTransformerEngineVersion("2.20.2");
        Path headers = machine.folder("venv/lib/python3.12/site-packages/nvidia/cu13/include");
        Files.createDirectories(headers.resolve("crt"));
        Files.createFile(headers.resolve("crt/host_defines.h"));
        Files.createFile(headers.resolve("cuda_runtime.h"));
        Files.writeString(headers.resolve("cuda_runtime_api.h"), "#define CUDART_VERSION 13000\n");
    }

    private Path site() {
        return root.resolve("venv/lib/python3.12/site-packages");
    }

    private Path folder(VendorLibrary library) {
        return site().resolve(library.pythonFolders().getFirst());
    }

    private void setTransformerEngineVersion(String version) throws IOException {
        try (Stream<Path> files = Files.list(site())) {
            for (Path info :
                    files.filter(file -> file.toString().endsWith(".dist-info")).toList()) {
                Files.delete(info);
            }
        }
        Files.createDirectory(site().resolve("transformer_engine_cu13-" + version + ".dist-info"));
    }

    private Report report(String provider, Driver driver) {
        machine.properties.put(Provider.PROPERTY, provider);
        return Doctor.report(machine.surroundings(), () -> driver, () -> {});
    }

    private static Row row(Report report, String library) {
        return report.rows().stream()
                .filter(row -> row.library().equals(library))
                .findFirst()
                .orElseThrow(() -> new AssertionError("no row for " + library + " in\n" + report.text()));
    }

    @Test
    void aWholeMachineIsWell() {
        Report report = report("auto", DRIVER);
        assertEquals(0, report.exitStatus(), report.text());
        assertTrue(report.rows().stream().allMatch(row -> row.state() == State.OK), report.text());
        assertEquals("cuda (NVIDIA driver for CUDA 13.0, 8 GPU(s))", report.provider());
        assertEquals("9.19.0", row(report, "cuDNN").version());
        assertEquals("13.0.0", row(report, "NVRTC").version());
        assertEquals("2.20.2", row(report, "Transformer Engine").version());
        assertTrue(report.text().contains("The provider works."), report.text());
        assertTrue(
                report.text()
                        .contains("Transformer Engine  ok     2.20.2     2.20 <= version < 2.21  "
                                + folder(VendorLibrary.TRANSFORMER_ENGINE).resolve("libtransformer_engine.so\n")),
                report.text());
    }

    /** What can be wrong with a library, how to make it so, and what the doctor says. */
    enum Fault {
        REMOVED("has no MAIN") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.delete(main);
            }
        },
        RENAMED("has MAIN.old, not MAIN") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.move(main, main.resolveSibling(main.getFileName() + ".old"));
            }
        },
        TOO_OLD("wanted WINDOW: TITLE is too old: upgrade it") {
            @Override
            void inflict(VendorLibrary library, Path main) {
                FakeLibrary.compileMain(library, main, older(library));
            }
        },
        TOO_NEW("wanted WINDOW: TITLE is too new: downgrade it, or upgrade Chagres") {
            @Override
            void inflict(VendorLibrary library, Path main) {
                FakeLibrary.compileMain(library, main, library.window().below());
            }
        },
        TEXT_FILE("MAIN is not a shared library (no ELF header)") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.writeString(main, "INPUT(elsewhere)\n");
            }
        },
        TRUNCATED("MAIN is truncated: the file is shorter than its ELF header says") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.write(main, Arrays.copyOf(Files.readAllBytes(main), 6000));
            }
        },
        DANGLING("MAIN is a symbolic link to nothing") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.delete(main);
                Files.createSymbolicLink(main, Path.of("MAIN.1.2.3"));
            }
        },
        FOLDER_IN_PLACE("MAIN is not a file") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.delete(main);
                Files.createDirectory(main);
            }
        },
        REFUSED_BY_LOADER(
                "NOT_LOADABLE: PATH, wanted WINDOW: it needs libneeded.so, which is not on the loader's path\n"
                        + "  the loader said: libneeded.so: cannot open shared") {
            @Override
            void inflict(VendorLibrary library, Path main) throws IOException {
                Files.delete(main);
                Files.copy(compiled.resolve("refused.so"), main);
            }
        };

        private final String said;

        Fault(String said) {
            this.said = said;
        }

        abstract void inflict(VendorLibrary library, Path main) throws IOException;

        String said(VendorLibrary library, Path main) {
            return said.replace("MAIN", library.mainPart())
                    .replace("PATH", main.toString())
                    .replace("WINDOW", library.window().toString())
                    .replace("TITLE", library.title());
        }

        private static LibraryVersion older(VendorLibrary library) {
            LibraryVersion from = library.window().from();
            return from.minor() == 0
                    ? new LibraryVersion(from.major() - 1, 8, 0)
                    : new LibraryVersion(from.major(), from.minor() - 1, 0);
        }
    }

    static Stream<Arguments> faults() {
        return Stream.of(VendorLibrary.values())
                .flatMap(library -> Stream.of(Fault.values()).map(fault -> Arguments.of(library, fault)));
    }

    private Path inflict(VendorLibrary library, Fault fault) {
        Path main = folder(library).resolve(library.mainPart());
        try {
            fault.inflict(library, main);
            if (library == VendorLibrary.TRANSFORMER_ENGINE && fault == Fault.TOO_OLD) {
                setTransformerEngineVersion("2.19.0");
            } else if (library == VendorLibrary.TRANSFORMER_ENGINE && fault == Fault.TOO_NEW) {
                setTransformerEngineVersion("2.21.0");
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return main;
    }

    @ParameterizedTest
    @MethodSource("faults")
    void eachFaultOfEachLibraryIsFoundAndMended(VendorLibrary library, Fault fault) {
        Path main = inflict(library, fault);
        Report report = report("cuda", DRIVER);
        assertEquals(1, report.exitStatus(), report.text());
        Row row = row(report, library.title());
        assertEquals(State.FAILED, row.state(), report.text());
        assertTrue(row.problem().contains(fault.said(library, main)), row.problem());
        if (fault == Fault.TOO_OLD || fault == Fault.TOO_NEW) {
            assertTrue(row.problem().startsWith("WRONG_VERSION: "), row.problem());
            LibraryVersion version = fault == Fault.TOO_OLD
                    ? Fault.older(library)
                    : library.window().below();
            assertTrue(row.problem().contains("version " + version), row.problem());
        }
        if (fault == Fault.REFUSED_BY_LOADER) {
            assertEquals("install the package that has libneeded.so", row.remedy());
            assertEquals("", report.installLine());
        } else {
            assertTrue(row.remedy().startsWith("pip install " + library.requirement()), row.remedy());
            assertTrue(row.remedy().contains("-D" + library.property() + "=DIR"), row.remedy());
            assertEquals("pip install " + library.requirement(), report.installLine());
        }
        assertTrue(report.text().contains("to mend it: " + row.remedy()), report.text());
        assertFalse(report.text().contains("in one line"), report.text());
        for (Row other : report.rows()) {
            assertTrue(other == row || other.state() == State.OK, other + " is not about " + library);
        }
    }

    @ParameterizedTest
    @MethodSource("faults")
    void theReferenceNeedsNoneOfThem(VendorLibrary library, Fault fault) {
        inflict(library, fault);
        Report report = report("auto", NO_DRIVER);
        assertEquals(0, report.exitStatus(), report.text());
        assertEquals("reference (no NVIDIA driver: libcuda.so.1: not there)", report.provider());
        assertTrue(report.text().contains("Not needed by this provider; to have them:\n"), report.text());
    }

    @ParameterizedTest
    @EnumSource(
            value = VendorLibrary.class,
            names = {"NVRTC", "CUBLAS", "CUDNN"})
    void aMissingPartIsNamed(VendorLibrary library) throws IOException {
        String part = library.parts().getFirst();
        Files.delete(folder(library).resolve(part.replace("*", "0")));
        Report report = report("cuda", DRIVER);
        assertEquals(1, report.exitStatus());
        String problem = row(report, library.title()).problem();
        assertTrue(problem.contains("has " + library.mainPart() + " but lacks " + part), problem);
    }

    @Test
    void anotherVersionIsTriedAllTheSameWhenAskedTo() {
        inflict(VendorLibrary.NCCL, Fault.TOO_NEW);
        machine.properties.put(VendorLibraries.VERSIONS_PROPERTY, "warn");
        Report report = report("cuda", DRIVER);
        assertEquals(0, report.exitStatus(), report.text());
        assertEquals(State.WARNING, row(report, "NCCL").state());
        assertTrue(report.text().contains("NCCL is too new"), report.text());
    }

    @Test
    void anUnknownVersionIsSaidToBeUnknown() throws IOException {
        Files.delete(site().resolve("transformer_engine_cu13-2.20.2.dist-info"));
        Report report = report("cuda", DRIVER);
        Row row = row(report, "Transformer Engine");
        assertEquals(State.WARNING, row.state());
        assertEquals("unknown", row.version());
        assertEquals(
                "does not tell its version: its version is that of its Python package, whose folder"
                        + " transformer_engine*-*.dist-info must lie beside it or up to three folders above",
                row.problem());
        assertTrue(
                row.remedy().startsWith("copy the folder transformer_engine*-*.dist-info there, or pip install"),
                row.remedy());
        assertEquals(0, report.exitStatus());
    }

    @Test
    void aBrokenLibraryInFrontOfAGoodOneIsAWarning() throws IOException {
        Path front = machine.folder("cuda/lib64");
        Files.writeString(front.resolve("libcudart.so.13"), "text");
        machine.environment.put("CUDA_HOME", root.resolve("cuda").toString());
        Report report = report("cuda", DRIVER);
        Row row = row(report, "CUDA runtime");
        assertEquals(State.WARNING, row.state());
        assertTrue(
                row.problem()
                        .startsWith("passed over CUDA_HOME " + front + ": libcudart.so.13 is not a shared library"),
                row.problem());
        assertEquals(0, report.exitStatus());
    }

    @Test
    void cudaWithoutADriverIsAFault() {
        Report report = report("cuda", NO_DRIVER);
        assertEquals(1, report.exitStatus());
        Row row = row(report, "NVIDIA driver");
        assertEquals("no NVIDIA driver: libcuda.so.1: not there", row.problem());
        assertTrue(row.remedy().contains("-Dchagres.provider=reference"), row.remedy());
    }

    @Test
    void aDriverForAnOlderCudaIsAFault() {
        Report report = report("auto", new Driver(1, 12080, "NVIDIA driver for CUDA 12.8, 1 GPU(s)"));
        assertEquals(1, report.exitStatus());
        Row row = row(report, "NVIDIA driver");
        assertEquals("CUDA 12.8", row.version());
        assertEquals("NVIDIA driver for CUDA 12.8, 1 GPU(s) is too old for the libraries", row.problem());
        assertTrue(row.remedy().contains("580 or newer"), row.remedy());
    }

    @Test
    void missingHeadersAreAFault() throws IOException {
        Files.delete(site().resolve("nvidia/cu13/include/cuda_runtime.h"));
        Report report = report("cuda", DRIVER);
        assertEquals(1, report.exitStatus());
        assertTrue(row(report, "CUDA headers").remedy().contains("nvidia-cuda-crt"), report.text());
    }

    @ParameterizedTest
    @EnumSource(Provider.class)
    void ourOwnLibrariesAreLookedAtToo(Provider provider) throws IOException {
        Path own = machine.folder("own");
        for (String name : List.of("libchagres_te.so", "libchagres_ops.so", "libchagres_reference.so")) {
            Files.copy(ForkedJvm.nativeFolder().resolve(name), own.resolve(name));
        }
        String needed = provider == Provider.CUDA ? "libchagres_ops.so" : "libchagres_reference.so";
        Files.writeString(own.resolve(needed), "text");
        machine.properties.put("chagres.native.path", own.toString());
        machine.environment.put("CHAGRES_OPENBLAS", own.resolve(needed).toString());
        Report report = report(provider.label(), DRIVER);
        assertEquals(1, report.exitStatus());
        Row row = row(report, provider == Provider.CUDA ? "operations" : "reference");
        assertEquals(own.resolve(needed) + ": " + needed + " is not a shared library (no ELF header)", row.problem());
        assertEquals(
                "take -Dchagres.native.path away, or name a folder that has the whole libraries with it", row.remedy());
    }

    @Test
    void aCacheThatCannotBeWrittenIsSaid() throws IOException {
        Path file = Files.createFile(root.resolve("in-the-way"));
        machine.properties.put("chagres.cache", file.resolve("cache").toString());
        Report report = report("cuda", DRIVER);
        assertTrue(report.text().contains("cannot be written; name another with -Dchagres.cache=DIR"), report.text());
    }

    @Test
    void aProviderThatIsNoneIsSaid() {
        Report report = report("tpu", DRIVER);
        assertEquals(1, report.exitStatus());
        assertEquals(
                "provider: none\n\nThe provider does not work:\n"
                        + "-Dchagres.provider: expected auto, cuda or reference, got \"tpu\"\n",
                report.text());
    }

    @Test
    void whatOpeningEverythingComesToIsTheVerdict() {
        machine.properties.put(Provider.PROPERTY, "cuda");
        Report report = Doctor.report(machine.surroundings(), () -> DRIVER, () -> {
            throw new IllegalStateException("it did not open");
        });
        assertEquals(1, report.exitStatus());
        assertTrue(report.text().endsWith("The provider does not work:\nit did not open\n"), report.text());
    }
}
