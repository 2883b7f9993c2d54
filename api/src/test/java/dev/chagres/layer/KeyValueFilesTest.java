package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.attention.AttentionMask;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.SharedInput;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files of cross-attention's weights: as written here, and with keys and values apart. */
@Tag("L0")
@Tag("L1")
class KeyValueFilesTest {
    private static final int HIDDEN = 32;
    private static final int MEMORY = 24;
    private static final int ROWS = 16;

    @TempDir
    private Path folder;

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        AttentionConfig heads = AttentionConfig.of(4, 8, AttentionMask.none()).withKeyHeads(2);
        new CrossAttention(
                CrossAttentionConfig.of(HIDDEN, heads)
                        .withMemoryColumns(MEMORY)
                        .withInitializer(Initializer.normal(0.2f)),
                new SharedInput("memory"),
                plan.group("layers.0").child("cross"));
        return plan;
    }

    /** Returns the state with the two halves of what belongs to key and value under names of their own. */
    private static State apart(Parameters parameters, Scope scope) {
        State.Builder state = new State.Builder();
        parameters.weightState().tensors().forEach((name, tensor) -> {
            if (name.contains(".key_value.")) {
                long half = tensor.count() / 2;
                long[] sizes = tensor.shape().sizes();
                sizes[0] /= 2;
                state.tensor(name.replace("key_value", "key"), scope.view(tensor, 0, new Shape(sizes)));
                state.tensor(name.replace("key_value", "value"), scope.view(tensor, half, new Shape(sizes)));
            } else {
                state.tensor(name, tensor);
            }
        });
        return state.build();
    }

    @Test
    void aFileWithKeysAndValuesApartIsRefusedWithWhatToDo() {
        Path file = folder.resolve("apart.safetensors");
        try (Device device = Device.open();
                Parameters written = Parameters.allocate(device, plan(), DType.FLOAT32, 3);
                Parameters read = Parameters.allocate(device, plan(), DType.FLOAT32, 4);
                Scope scope = device.openScope()) {
            Safetensors.save(file, apart(written, scope), device.stream(), Map.of());
            for (State state : new State[] {read.weightState(), read.state()}) {
                String text = String.valueOf(
                        assertThrows(SafetensorsException.class, () -> Safetensors.load(file, state, device.stream()))
                                .getMessage());
                assertTrue(
                        text.contains("; keys and values of cross-attention are one tensor here: join each pair of the"
                                + " file, first the rows of \"layers.0.cross.key.weight\" and then those of"
                                + " \"layers.0.cross.value.weight\", to \"layers.0.cross.key_value.weight\"\n"),
                        text);
            }
            // As the text says: each into its half.
            Safetensors.load(file, apart(read, scope), device.stream());
            read.changed();
            assertSame(written, read);
        }
    }

    private static void assertSame(Parameters written, Parameters read) {
        for (Parameter parameter : written.all()) {
            assertArrayEquals(
                    parameter.weight().toFloats(written.scope().stream()),
                    read.get(parameter.name()).weight().toFloats(read.scope().stream()),
                    parameter.name());
        }
    }

    @Test
    void aFileThatWasWrittenHereIsRead() {
        Path file = folder.resolve("joined.safetensors");
        try (Device device = Device.open();
                Parameters written = Parameters.allocate(device, plan(), DType.FLOAT32, 3);
                Parameters read = Parameters.allocate(device, plan(), DType.FLOAT32, 4)) {
            Safetensors.save(file, written.weightState(), device.stream(), Map.of());
            Safetensors.load(file, read.weightState(), device.stream());
            assertSame(written, read);
            assertEquals(
                    2 * ROWS,
                    read.get("layers.0.cross.key_value.weight").weight().size(0));
        }
    }
}
