package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Doctor.Report;
import dev.chagres.bindings.Doctor.Row;
import dev.chagres.bindings.Doctor.State;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Each cause of a refusal has its own words and its own mend. */
@Tag("L0")
class LoadFaultTest {
    private static final LoadFault.Supply SUPPLY = new LoadFault.Supply("bring it anew", "-Dplace=DIR");
    private static final Path FILE = Path.of("/absent/libx.so");

    @TempDir
    private Path root;

    private FakeMachine machine;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(root);
        machine.properties.put(Provider.PROPERTY, "reference");
        machine.properties.put("chagres.cache", root.resolve("cache").toString());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '"',
            value = {
                "/absent/libx.so: failed to map segment from shared object: Operation not permitted | mounted noexec | file system without noexec: -Dplace=DIR",
                "/absent/libx.so: failed to map segment from shared object: Permission denied | SELinux | chcon -t lib_t FILE",
                "/absent/libx.so: failed to map segment from shared object: Cannot allocate memory | no memory to map it | ulimit -v",
                "/absent/libx.so: cannot restore segment prot after reloc: Permission denied | SELinux | -Dplace=DIR",
                "/absent/libx.so: cannot enable executable stack as shared object requires: Permission denied | AppArmor | -Dplace=DIR",
                "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /absent/libx.so) | it needs GLIBC_2.38 | newer system or container image",
                "/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /absent/libx.so) | it needs GLIBCXX_3.4.32 | apt install libstdc++6",
                "/lib/libnvrtc.so.13: version `libnvrtc.so.13' not found (required by /absent/libx.so) | needs libnvrtc.so.13 of libnvrtc.so.13 | bring the versions together: bring it anew",
                "libstdc++.so.6: cannot open shared object file: No such file or directory | it needs libstdc++.so.6 | apt install libstdc++6",
                "libnccl.so.2: cannot open shared object file: No such file or directory | it needs libnccl.so.2 | pip install nvidia-nccl-cu13==2.28.9",
                "libcuda.so.1: cannot open shared object file: No such file or directory | it needs libcuda.so.1 | install NVIDIA's driver",
                "libother.so.3: cannot open shared object file: No such file or directory | it needs libother.so.3 | install the package that has libother.so.3",
                "/absent/libx.so: cannot open shared object file: Permission denied | may not read it | ls -l, chmod",
                "/absent/libx.so: cannot open shared object file: Too many open files | may not open more files | ulimit -n",
                "/absent/libx.so: cannot allocate memory in static TLS block | thread-local | LD_PRELOAD=/absent/libx.so",
                "/lib/liby.so.1: file too short | /lib/liby.so.1 is damaged | install the package that has /lib/liby.so.1 anew",
                "/absent/libx.so: invalid ELF header | /absent/libx.so is damaged | bring it anew",
                "/absent/libx.so: wrong ELF class: ELFCLASS32 | no shared library for this machine | bring it anew",
                "/absent/libx.so: undefined symbol: cublasFoo | the function cublasFoo | bring the versions together: bring it anew",
                "Error loading shared library libstdc++.so.6: No such file or directory (needed by /absent/libx.so) | glibc (Alpine has musl) | image with glibc",
                "Error relocating /absent/libx.so: __strtol: symbol not found | glibc (Alpine has musl) | image with glibc"
            })
    void theMendFollowsFromWhatTheLoaderSaid(String text, String cause, String remedy) {
        LoadFault fault = LoadFault.of(FILE, text, SUPPLY, machine.surroundings());
        assertTrue(fault.cause().contains(cause), fault.toString());
        assertTrue(fault.remedy().contains(remedy), fault.toString());
    }

    @Test
    void anUnknownTextIsLeftToTheReader() {
        assertEquals(
                new LoadFault("", "bring it anew"),
                LoadFault.of(FILE, "something new", SUPPLY, machine.surroundings()));
        assertEquals(
                new LoadFault("", "bring it anew"),
                LoadFault.of(
                        FILE,
                        FILE + ": cannot open shared object file: No such file or directory",
                        SUPPLY,
                        machine.surroundings()));
    }

    /** glibc says of a library for another processor that there is no such file. */
    @Test
    void theFileItselfTellsMoreThanTheLoader() throws IOException {
        byte[] whole = Files.readAllBytes(ForkedJvm.nativeFolder().resolve("libchagres_te.so"));
        byte[] other = whole.clone();
        other[18] = (byte) 243; // RISC-V
        Path file = root.resolve("libx.so");
        String said = file + ": cannot open shared object file: No such file or directory";
        Object[][] cases = {
            {other, "libx.so is made for another processor (ELF machine 243), this JVM runs on "},
            {Arrays.copyOf(whole, 5000), "libx.so is truncated: the file is shorter than its ELF header says"},
            {new byte[0], "libx.so is not a shared library (no ELF header)"},
            {"text".getBytes(java.nio.charset.StandardCharsets.US_ASCII), "libx.so is not a shared library"}
        };
        for (Object[] one : cases) {
            Files.write(file, (byte[]) one[0]);
            LoadFault fault = LoadFault.of(file, said, SUPPLY, machine.surroundings());
            assertTrue(fault.cause().startsWith((String) one[1]), fault.toString());
            assertEquals("bring it anew", fault.remedy());
            assertEquals(
                    fault,
                    LoadFault.before(file, SUPPLY, machine.surroundings()).orElseThrow());
        }
    }

    @Test
    void whyTheCacheCannotBeWrittenIsToldWithItsMend() throws IOException {
        Path inTheWay = Files.createFile(root.resolve("file"));
        Path cache = inTheWay.resolve("cache");
        String elsewhere = "name another folder: -Dplace=DIR";
        Object[][] cases = {
            {new IOException("No space left on device"), "no space is left for " + cache, "free some, or " + elsewhere},
            {new FileSystemException("/c", null, "Disk quota exceeded"), "no space is left", "free some, or "},
            {new FileSystemException("/c", null, "Read-only file system"), "is mounted read-only", elsewhere},
            {
                new FileAlreadyExistsException(inTheWay.toString()),
                inTheWay + " is a file, where a folder is needed",
                "move the file away, or " + elsewhere
            },
            {new FileSystemException("/c", null, "Not a directory"), inTheWay + " is a file", elsewhere},
            {new AccessDeniedException("/c"), "this user may not write to " + cache, "chmod), or " + elsewhere},
            {new FileSystemException("/c", null, "Operation not permitted"), "may not write to", elsewhere},
            {new IOException("the moon is full"), "", "bring it anew"}
        };
        for (Object[] one : cases) {
            LoadFault fault = LoadFault.of((IOException) one[0], cache, SUPPLY);
            assertTrue(fault.cause().contains((String) one[1]), fault.toString());
            assertTrue(fault.remedy().contains((String) one[2]), fault.toString());
        }
    }

    private Report reportWithMount(Path mounted, String options) throws IOException {
        Files.writeString(
                machine.folder("proc/self").resolve("mountinfo"),
                "22 1 0:20 / / rw,relatime - ext4 /dev/root rw\n23 22 0:21 / "
                        + mounted.toString().replace(" ", "\\040") + " " + options + " - tmpfs none rw\n");
        return Doctor.report(machine.surroundings(), () -> new Driver(0, 0, "no driver"), () -> {});
    }

    @Test
    void theDoctorSeesAFileSystemThatIsMountedNoexec() throws IOException {
        Path mounted = Files.createDirectories(root.resolve("with blank"));
        Path natives = Files.createDirectories(mounted.resolve("natives"));
        for (String name : new String[] {"libchagres_te.so", "libchagres_ops.so", "libchagres_reference.so"}) {
            Files.copy(ForkedJvm.nativeFolder().resolve(name), natives.resolve(name));
        }
        machine.properties.put("chagres.native.path", natives.toString());
        machine.properties.put("chagres.cache", mounted.resolve("cache").toString());
        Report report = reportWithMount(mounted, "rw,nosuid,noexec");
        assertEquals(1, report.exitStatus(), report.text());
        Row guard = report.rows().stream()
                .filter(row -> row.library().equals("guard"))
                .findFirst()
                .orElseThrow();
        assertEquals(State.FAILED, guard.state());
        assertEquals(
                natives.resolve("libchagres_te.so") + ": the file system " + mounted
                        + " is mounted noexec, so no library on it can be opened",
                guard.problem());
        assertEquals("name a folder on a file system without noexec: -Dchagres.native.path=DIR", guard.remedy());
        assertTrue(
                report.text()
                        .contains(
                                "is on the file system " + mounted
                                        + ", mounted noexec: no library in it can be opened; name another with -Dchagres.cache=DIR"),
                report.text());
        assertTrue(reportWithMount(mounted, "rw,nosuid").rows().stream()
                .anyMatch(row -> row.library().equals("guard") && row.state() == State.OK));
    }

    @Test
    void aLibraryInTheCacheIsMovedByTheCachesProperty() throws IOException {
        Files.writeString(
                machine.folder("proc/self").resolve("mountinfo"), "22 1 0:20 / / rw,noexec - tmpfs none rw\n");
        var jar = FakeLibraries.jar(root.resolve("a.jar"), 5).toUri().toURL();
        try (var loader = new java.net.URLClassLoader(new java.net.URL[] {jar}, null)) {
            OwnLibraries own = OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader);
            Files.copy(
                    ForkedJvm.nativeFolder().resolve("libchagres_te.so"),
                    own.guard(),
                    java.nio.file.StandardCopyOption.REPLACE_EXISTING);
            MissingLibraryException refused = own.notLoadable(
                    own.guard(), own.guard() + ": failed to map segment from shared object: Operation not permitted");
            assertEquals(
                    "name a folder on a file system without noexec: -Dchagres.cache=DIR, or the variable CHAGRES_CACHE",
                    refused.remedy());
            assertTrue(refused.detail().contains("is mounted noexec"), refused.detail());
        }
    }
}
