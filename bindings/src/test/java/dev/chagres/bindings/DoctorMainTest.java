package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The doctor as a program, on the machine that runs this test. */
@Tag("L0")
class DoctorMainTest {

    @Test
    void theReferenceWorksOnThisMachine() {
        String output = ForkedJvm.run(List.of("-Dchagres.provider=reference"), Doctor.class)
                .expectExit(0)
                .output();
        assertTrue(output.contains("provider: reference (-Dchagres.provider=reference)"), output);
        assertTrue(output.endsWith("The provider works.\n"), output);
    }

    @Test
    void cudaWithoutItsLibrariesEndsWithStatusOne() {
        String output = ForkedJvm.run(List.of("-Dchagres.provider=cuda", "-Dchagres.te.path=/absent"), Doctor.class)
                .expectExit(1)
                .output();
        assertTrue(output.contains("tried -Dchagres.te.path /absent: no such file or folder"), output);
        assertTrue(output.contains("to mend it: pip install transformer_engine_cu13==2.20.2"), output);
    }

    @Test
    void aMissingFlagIsNamedAndNoReasonToFail() {
        List<String> arguments =
                List.of("-cp", ForkedJvm.classPath(), "-Dchagres.provider=reference", Doctor.class.getName());
        String output = ForkedJvm.run(arguments, Map.of()).expectExit(0).output();
        assertTrue(
                output.contains("native access: not set: start Java with --enable-native-access=ALL-UNNAMED"), output);
    }

    /** Root can read every file, so the doctor then runs as another user, from a copy that this user can read. */
    @Test
    void anUnreadableFileIsSaidToBeUnreadable(@TempDir Path folder) throws IOException {
        Files.setPosixFilePermissions(folder, PosixFilePermissions.fromString("rwxr-xr-x"));
        Path library = folder.resolve("libnccl.so.2");
        FakeLibrary.compile(VendorLibrary.NCCL, folder, new LibraryVersion(2, 28, 9));
        Files.setPosixFilePermissions(library, PosixFilePermissions.fromString("---------"));
        List<String> command = new ArrayList<>();
        Path classes = ForkedJvm.bindings();
        if (Files.isReadable(library)) {
            classes = copy(classes, folder.resolve("classes"));
            command.addAll(List.of("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"));
        }
        command.addAll(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                ForkedJvm.NATIVE_ACCESS,
                "-cp",
                classes.toString(),
                "-Dchagres.provider=cuda",
                "-Dchagres.nccl.path=" + folder,
                Doctor.class.getName()));
        ForkedJvm.Result result = ForkedJvm.execute(command, Map.of());
        assumeTrue(result.output().contains("provider: "), "another user cannot run Java here: " + result.output());
        assertTrue(
                result.expectExit(1).output().contains("libnccl.so.2 is not readable by this user"), result.output());
    }

    private static Path copy(Path source, Path target) throws IOException {
        try (Stream<Path> files = Files.walk(source)) {
            for (Path file : files.toList()) {
                Files.copy(file, target.resolve(source.relativize(file)));
            }
        }
        return target;
    }
}
