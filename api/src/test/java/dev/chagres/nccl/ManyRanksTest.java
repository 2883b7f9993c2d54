package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.conformance.ChildJvm;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Collectives of more ranks than one host has GPUs, on the reference: every type, every reduction, odd and zero counts, in place or not. */
@Tag("L0")
class ManyRanksTest {
    @TempDir
    private Path folder;

    /** The number of devices is read once: a process of its own has as many. */
    @Test
    void collectivesOfUpToSixteenRanks() throws Exception {
        Path out = folder.resolve("out");
        Path errors = folder.resolve("err");
        ProcessBuilder builder = ChildJvm.of(List.of("-Xmx1g"), ManyRanksProgram.class)
                .redirectOutput(out.toFile())
                .redirectError(errors.toFile());
        builder.environment().put("CHAGRES_REFERENCE_DEVICES", "16");
        Process process = builder.start();
        try {
            assertTrue(process.waitFor(300, TimeUnit.SECONDS), "still runs");
            assertEquals(0, process.exitValue(), () -> text(errors));
            assertEquals(ManyRanksProgram.RANKS.stream().map(Object::toString).toList(), Files.readAllLines(out));
        } finally {
            process.destroyForcibly();
        }
    }

    private static String text(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
