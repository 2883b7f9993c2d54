package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Doctor.Report;
import dev.chagres.bindings.Doctor.Row;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The doctor finds the OpenBLAS that the reference will open, and tells of one that does not serve. */
@Tag("L0")
class OpenBlasTest {
    private static final String NO_OTHER =
            "unset CHAGRES_OPENBLAS, for no other place is tried while it is set, or name another file with it";

    @TempDir
    private Path root;

    private static Row examine(FakeMachine machine, int exitStatus) {
        Report report = Doctor.report(machine.surroundings(), () -> new Driver(0, 0, "no driver"), () -> {});
        assertEquals(exitStatus, report.exitStatus(), report.text());
        return report.rows().stream()
                .filter(row -> row.library().equals("OpenBLAS"))
                .findFirst()
                .orElseThrow();
    }

    @Test
    void anOpenBlasThatDoesNotServeIsAFault() throws IOException {
        FakeMachine machine = new FakeMachine(root);
        machine.properties.put(Provider.PROPERTY, "reference");
        machine.properties.put("chagres.native.path", ForkedJvm.nativeFolder().toString());
        machine.properties.put("chagres.cache", root.resolve("cache").toString());
        for (Path file : List.of(
                root.resolve("absent.so"),
                Files.writeString(root.resolve("text.so"), "text"),
                ForkedJvm.nativeFolder().resolve("libchagres_te.so"))) {
            machine.environment.put("CHAGRES_OPENBLAS", file.toString());
            Row row = examine(machine, 1);
            assertTrue(row.problem().startsWith(file + ": "), row.problem());
            assertEquals(NO_OTHER, row.remedy());
        }
        machine.environment.remove("CHAGRES_OPENBLAS");
        assertEquals("", examine(machine, 0).problem());
    }
}
