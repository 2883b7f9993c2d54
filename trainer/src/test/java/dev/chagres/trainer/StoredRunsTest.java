package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Short runs on the CPU reference with each option of the training program have the bits that are stored. */
@Tag("L0")
@Timeout(600)
class StoredRunsTest {
    private static final Path STORED = Path.of("src/test/resources/vectors/stored_runs.txt");

    /** OpenBLAS's kernels for SSE3 moved a norm by 6.4e-4, in FP16. */
    private static final double TOLERANCE = 1e-2;

    @TempDir
    private Path folder;

    @Test
    void everyRunHasItsStoredBits() throws Exception {
        Path output = folder.resolve("runs.txt");
        List<String> arguments = List.of(STORED.toString(), output.toString());
        // Runs are too short for the compiler to pay.
        List<String> options = List.of("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC");
        List<String> command = TrainJvm.command(List.of(), options, StoredRuns.class, arguments);
        new StoredBits(STORED, StoredRunsTest.class, TOLERANCE).check(new ProcessBuilder(command), output);
    }

    @Test
    void oneBitIsADifference() {
        List<String> stored = List.of("# text", "a: train --steps 1", "a, step 1: loss=0x1.8p1 gradNorm=0x1.0p0");
        List<String> computed = List.of("a: train --steps 1", "a, step 1: loss=0x1.800002p1 gradNorm=0x1.0p0");
        assertEquals(
                List.of("a, step 1: expected loss=0x1.8p1, got loss=0x1.800002p1"),
                StoredBits.differences(stored, computed, 0));
        assertEquals(List.of(), StoredBits.differences(stored, stored, 0));
    }

    @Test
    void otherKernelsMayDifferByTheTolerance() {
        List<String> stored = List.of("a: loss=0x1.8p1 sha256=00", "b: loss=NaN", "c: loss=0x1.0p0");
        List<String> computed = List.of("a: loss=0x1.800002p1 sha256=01", "b: loss=0x1.0p0", "d: loss=0x1.0p0");
        assertEquals(
                List.of(
                        "b: expected loss=NaN, got loss=0x1.0p0",
                        "c: stored, and not computed",
                        "d: computed, and not stored"),
                StoredBits.differences(stored, computed, 1e-6));
    }
}
