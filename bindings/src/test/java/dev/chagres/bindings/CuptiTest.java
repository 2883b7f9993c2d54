package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class CuptiTest {
    @TempDir
    private Path root;

    private Path install(FakeMachine machine, String folder) throws IOException {
        return Files.createFile(machine.folder(folder).resolve("libcupti.so.13"));
    }

    @Test
    void takesTheToolkitsBeforePipsAndTheNamedOneBeforeAll() throws IOException {
        FakeMachine machine = new FakeMachine(root);
        assertEquals(Optional.empty(), Cupti.find(machine.surroundings()));
        Path loaders = install(machine, "libraries");
        machine.environment.put("LD_LIBRARY_PATH", ":" + root.resolve("libraries"));
        assertEquals(Optional.of(loaders), Cupti.find(machine.surroundings()));
        machine.environment.clear();
        machine.python.add(machine.folder("site"));
        Path pip = install(machine, "site/nvidia/cu13/lib");
        assertEquals(Optional.of(pip), Cupti.find(machine.surroundings()));
        Path older = install(machine, "usr/local/cuda-13.0/extras/CUPTI/lib64");
        assertEquals(Optional.of(older), Cupti.find(machine.surroundings()));
        Path newer = install(machine, "usr/local/cuda-13.2/extras/CUPTI/lib64");
        assertEquals(Optional.of(newer), Cupti.find(machine.surroundings()));
        machine.environment.put("CUDA_HOME", root.resolve("home").toString());
        Path home = install(machine, "home/lib64");
        assertEquals(Optional.of(home), Cupti.find(machine.surroundings()));
        machine.environment.put("CHAGRES_CUPTI_PATH", root.resolve("libraries").toString());
        assertEquals(Optional.of(loaders), Cupti.find(machine.surroundings()));
        machine.properties.put("chagres.cupti.path", root.resolve("absent.so").toString());
        assertEquals(Optional.of(root.resolve("absent.so")), Cupti.find(machine.surroundings()));
    }
}
