package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.chagres.attention.RotaryConfig;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.Layer;
import dev.chagres.layer.Sequential;
import dev.chagres.model.State;
import dev.chagres.te.Activation;
import dev.chagres.te.TensorLists;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Lists and arrays with a null inside: the error names the argument and the place. */
@Tag("L0")
@Tag("L1")
@SuppressWarnings({"DataFlowIssue", "NullAway"}) // Callers without a null checker pass null.
class NullsInListsTest {
    private static void missing(String argument, int index, Executable call) {
        assertThrown(NullPointerException.class, argument + ": expected values, got null at " + index, call);
    }

    @Test
    void ofLayersNumbersAndStates() {
        Layer gelu = new ActivationLayer("gelu", Activation.GELU);
        missing("layers", 1, () -> new Sequential("s", gelu, null));
        assertEquals(2, new Sequential("s", gelu, gelu).layers().size());
        missing("frequencies", 1, () -> RotaryConfig.of(4).withFrequencies(Arrays.asList(1.0, null)));
        missing("parts", 0, () -> State.of((State) null));
    }

    @Test
    void ofTensors(@TempDir Path folder) {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor one = scope.tensor(DType.FLOAT32, 4);
            missing("lists[1]", 0, () -> TensorLists.of(new Tensor[] {one}, new Tensor[] {null}));
            assertThrown(
                    NullPointerException.class,
                    "lists[1]: expected a value, got null",
                    () -> TensorLists.of(new Tensor[] {one}, null));
            missing("buffers", 0, () -> TensorLists.ofRange(scope, 0, 4, (Tensor) null));
            assertThrown(
                    IllegalArgumentException.class,
                    "offset: expected elements within Tensor FLOAT32[4], got 9223372036854775807 from 0 on",
                    () -> TensorLists.ofRange(scope, 0, Long.MAX_VALUE, one));
            assertThrown(
                    IllegalArgumentException.class,
                    "offset: expected elements within Tensor FLOAT32[4], got 1 from 9223372036854775807 on",
                    () -> TensorLists.ofRange(scope, Long.MAX_VALUE, 1, one));
            TensorLists.ofRange(scope, 0, 4, one).close();
        }
        Path file = folder.resolve("model.safetensors");
        missing("tensors", 0, () -> SafetensorsWriter.write(file, Arrays.asList((TensorSource) null), Map.of()));
        assertFalse(Files.exists(file));
    }
}
