package dev.chagres.layer;

import dev.chagres.conformance.ChildJvm;
import dev.chagres.conformance.StoredBits;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Every kind of layer, in each type and by each recipe, has the bits on the CPU reference that are stored. */
@Tag("L0")
@Timeout(600)
class StoredLayersTest {
    private static final Path STORED = Path.of("src/test/resources/vectors/stored_layers.txt");

    /** OpenBLAS's kernels for SSE3 moved a norm by 5.1e-7; another rounding to eight bits may move one further. */
    private static final double TOLERANCE = 1e-3;

    @TempDir
    private Path folder;

    @Test
    void everyLayerHasItsStoredBits() throws Exception {
        Path output = folder.resolve("layers.txt");
        ProcessBuilder program = ChildJvm.of(List.of("-Xmx512m"), StoredLayers.class, output.toString());
        new StoredBits(STORED, StoredLayersTest.class, TOLERANCE).check(program, output);
    }
}
