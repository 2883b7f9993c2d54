package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** State saved in mid-run and loaded elsewhere goes on with the same bits. */
@Tag("L0")
@Tag("L1")
class SafetensorsTest {
    private static final int COLUMNS = 24;

    @TempDir
    Path folder;

    /** One linear layer that learns to answer with zeros. */
    private static final class Run implements AutoCloseable {
        private final Device device;
        private final Linear linear;
        private final Parameters parameters;
        private final AdamW optimizer;
        private final GradientNorm norm;
        private final Pass pass;

        Run(Device device, DType dtype, long seed) {
            this.device = device;
            ModelPlan plan = new ModelPlan();
            linear = new Linear(COLUMNS, COLUMNS, Initializer.normal(0.3f), plan.group("linear"));
            parameters = Parameters.allocate(device, plan, dtype, seed);
            optimizer = new AdamW(parameters, AdamW.Config.standard());
            norm = new GradientNorm(parameters, 1);
            pass = Pass.training(device);
        }

        float[] step() {
            pass.begin();
            float[] values = new float[5 * COLUMNS];
            for (int i = 0; i < values.length; i++) {
                values[i] = (i * 7 % 11) - 5;
            }
            Tensor x = pass.scope().tensor(parameters.dtype(), 5, COLUMNS);
            x.set(device.stream(), values);
            Tensor y = linear.forward(x, pass);
            float[] output = y.toFloats(device.stream());
            linear.backward(y, pass);
            norm.compute();
            optimizer.step(1e-2f, norm);
            return output;
        }

        List<float[]> steps(int count) {
            List<float[]> outputs = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                outputs.add(step());
            }
            return outputs;
        }

        State state() {
            return State.of(parameters.state(), optimizer.state());
        }

        @Override
        public void close() {
            pass.close();
            optimizer.close();
            parameters.close();
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void aLoadedRunGoesOnWithTheSameBits(DType dtype) {
        Path file = folder.resolve("run.safetensors");
        try (Device device = Device.open();
                Run run = new Run(device, dtype, 1);
                Run other = new Run(device, dtype, 2)) {
            run.steps(3);
            Safetensors.save(file, run.state(), device.stream(), Map.of("step", "3"));
            List<float[]> expected = run.steps(3);
            other.steps(1);
            Safetensors.load(file, other.state(), device.stream());
            assertEquals(3, other.parameters.step());
            assertEquals(3, other.optimizer.step());
            List<float[]> actual = other.steps(3);
            for (int i = 0; i < 3; i++) {
                assertArrayEquals(expected.get(i), actual.get(i), "step " + i);
            }
        }
        try (SafetensorsFile written = SafetensorsFile.open(file)) {
            assertEquals(Map.of("step", "3"), written.metadata());
            assertTrue(written.entries().containsKey("linear.weight.exp_avg"));
            assertEquals(dtype != DType.FLOAT32, written.entries().containsKey("linear.weight.master"));
        }
    }

    /** Nothing is loaded from a file whose number of steps cannot be. */
    @Test
    void impossibleNumbersAreRefusedBeforeAnythingIsLoaded() {
        Path file = folder.resolve("edited.safetensors");
        try (Device device = Device.open();
                Run run = new Run(device, DType.FLOAT32, 1);
                Run other = new Run(device, DType.FLOAT32, 2)) {
            run.steps(1);
            other.steps(2);
            for (String edited : List.of("step", "optimizer.step")) {
                for (long wrong : new long[] {-1, Long.MIN_VALUE, Long.MAX_VALUE}) {
                    State.Builder builder = new State.Builder();
                    run.state().tensors().forEach(builder::tensor);
                    for (String name : run.state().numbers().keySet()) {
                        builder.number(name, () -> name.equals(edited) ? wrong : 1, value -> {}, 9);
                    }
                    Safetensors.save(file, builder.build(), device.stream(), Map.of());
                    float[] before = other.parameters.all().getFirst().weight().toFloats(device.stream());
                    long most = edited.equals("step") ? Long.MAX_VALUE - 1 : Integer.MAX_VALUE;
                    assertThrown(
                            SafetensorsException.class,
                            file + ": tensor \"" + edited + "\": expected a number from 0 to " + most + ", got "
                                    + wrong,
                            () -> Safetensors.load(file, other.state(), device.stream()));
                    assertArrayEquals(
                            before, other.parameters.all().getFirst().weight().toFloats(device.stream()));
                    assertEquals(2, other.optimizer.step());
                }
            }
        }
    }

    /** Weights alone, as a published model has them, make the optimizer take new masters. */
    @Test
    void weightsAloneAreTakenOverByTheOptimizer() {
        Path file = folder.resolve("weights.safetensors");
        try (Device device = Device.open();
                Run run = new Run(device, DType.BFLOAT16, 1);
                Run other = new Run(device, DType.BFLOAT16, 2)) {
            Safetensors.save(file, run.parameters.state(), device.stream(), Map.of());
            Safetensors.load(file, other.parameters.state(), device.stream());
            List<float[]> expected = run.steps(3);
            List<float[]> actual = other.steps(3);
            for (int i = 0; i < 3; i++) {
                assertArrayEquals(expected.get(i), actual.get(i), "step " + i);
            }
        }
    }

    @Test
    void anotherModelsFileIsRefusedWithEveryDifference() {
        Path file = folder.resolve("run.safetensors");
        try (Device device = Device.open();
                Run run = new Run(device, DType.BFLOAT16, 1);
                Run other = new Run(device, DType.FLOAT32, 2)) {
            Safetensors.save(file, run.state(), device.stream(), Map.of());
            float[] before = other.linear.weight().weight().toFloats(device.stream());
            String text = String.valueOf(assertThrows(
                            SafetensorsException.class, () -> Safetensors.load(file, other.state(), device.stream()))
                    .getMessage());
            assertTrue(text.contains("linear.weight") && text.contains("linear.bias"), text);
            assertTrue(text.contains("linear.weight.master"), text);
            assertArrayEquals(before, other.linear.weight().weight().toFloats(device.stream()));
        }
    }
}
