package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Moments and masters in the host's memory: the bits of those on the device, whatever happens between two steps. */
@Tag("L0")
@Tag("L1")
class OffloadedAdamTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
    private static final AdamW.Config REMAINDERS = ADAM.withMasters(AdamW.Masters.REMAINDER);

    /** Weights of both types, five chunks of 1,024 elements, some of which begin inside a parameter. */
    private static Parameters parameters(DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.group("body").declare("a", Initializer.normal(1), 31, 90);
        plan.group("body").declare("b", Initializer.normal(1), 33);
        plan.group("head").declareAs(DType.FLOAT32, "c", Initializer.normal(1), 40, 30);
        plan.group("head").declare("d", Initializer.normal(1), 15, 37);
        return Parameters.allocate(open.device(), plan, dtype, 3);
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        for (Parameter one : parameters.all()) {
            double[] values = new double[(int) one.shape().count()];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(step + 0.37 * i + one.name().hashCode() % 7);
            }
            open.set(one.gradient(), values);
        }
    }

    private static void assertSame(Optimizer expected, Optimizer actual) {
        for (var each : expected.parameters().state().tensors().entrySet()) {
            assertBytes(
                    each.getKey(),
                    each.getValue(),
                    actual.parameters().state().tensors().get(each.getKey()));
        }
        for (var each : expected.state().tensors().entrySet()) {
            assertBytes(each.getKey(), each.getValue(), actual.state().tensors().get(each.getKey()));
        }
    }

    private static void assertBytes(String name, Tensor expected, Tensor actual) {
        if (expected.dtype() == DType.BYTE) {
            assertArrayEquals(expected.toBytes(open.stream()), actual.toBytes(open.stream()), name);
        } else {
            assertArrayEquals(open.read(expected), open.read(actual), name);
        }
    }

    private static Stream<AdamW.Config> configs() {
        return Stream.of(ADAM, REMAINDERS, REMAINDERS.withMomentDType(DType.BFLOAT16));
    }

    @ParameterizedTest
    @MethodSource("configs")
    void stepsHaveTheSameBits(AdamW.Config config) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            try (Parameters here = parameters(dtype);
                    Parameters there = parameters(dtype);
                    Optimizer onDevice = config.make(here, List.of());
                    Optimizer onHost = new OffloadedConfig(config, 1024).make(there, List.of())) {
                for (int step = 0; step < 4; step++) {
                    gradients(here, step);
                    gradients(there, step);
                    onDevice.step(0.1f);
                    onHost.step(0.1f);
                }
                assertSame(onDevice, onHost);
            }
        }
    }

    /** What is copied ahead is copied again where somebody has written since. */
    @Test
    void whatOthersWriteBetweenStepsCounts() {
        try (Parameters here = parameters(DType.BFLOAT16);
                Parameters there = parameters(DType.BFLOAT16);
                Optimizer onDevice = ADAM.make(here, List.of());
                Optimizer onHost = new OffloadedConfig(ADAM, 1024).make(there, List.of())) {
            for (int step = 0; step < 6; step++) {
                for (Optimizer one : List.of(onDevice, onHost)) {
                    Parameters own = one.parameters();
                    if (step == 2) {
                        Tensor mean = one.state().tensors().get("body.a.exp_avg");
                        mean.set(open.stream(), new float[(int) mean.count()]);
                    } else if (step == 4) {
                        Tensor weight = own.get("body.a").weight();
                        weight.set(open.stream(), new float[(int) weight.count()]);
                        own.changed();
                    }
                    gradients(own, step);
                    one.step(0.1f);
                }
                assertSame(onDevice, onHost);
            }
        }
    }

    @Test
    void theDeviceHoldsTwoChunksAlone() {
        long before = open.device().memoryUse().of(MemoryUse.Holder.OPTIMIZER);
        // @start region="offload"
        AdamW.Config adam = AdamW.Config.standard().withMasters(AdamW.Masters.REMAINDER);
        try (Parameters parameters = parameters(DType.BFLOAT16);
                Optimizer optimizer = adam.offloaded().make(parameters, List.of())) {
            System.out.println(optimizer.hostBytes()); // 10 bytes of each parameter
            // @end
            long count = parameters.gradients().count();
            assertTrue(optimizer.hostBytes() >= 10 * count && optimizer.hostBytes() <= 10 * count + 1024, "host");
            assertTrue(
                    optimizer.explain().contains("1 chunk: moments and masters lie in the host's memory"), "explain");
        }
        ModelPlan plan = new ModelPlan();
        plan.group("large").declare("a", Initializer.zeros(), 1024, 8192);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1);
                Optimizer optimizer = new OffloadedConfig(adam, 1 << 20).make(parameters, List.of())) {
            long held = open.device().memoryUse().of(MemoryUse.Holder.OPTIMIZER) - before;
            assertTrue(held > 20 << 20 && held < 24 << 20, () -> held + " bytes");
            assertEquals(80L << 20, optimizer.hostBytes());
        }
        assertEquals(before, open.device().memoryUse().of(MemoryUse.Holder.OPTIMIZER));
    }

    @Test
    void refusesWhatDoesNotCombine() {
        assertThrown(
                IllegalArgumentException.class,
                "updates: expected moments of FLOAT32 or BFLOAT16 in the host's memory, got BYTE, whose scales are not"
                        + " streamed",
                () -> ADAM.withMomentDType(DType.BYTE).offloaded());
        assertThrown(
                IllegalArgumentException.class,
                "chunk: expected a positive multiple of 1024 elements, got 1000",
                () -> new OffloadedConfig(ADAM, 1000));
        try (Parameters parameters = parameters(DType.FLOAT32);
                Optimizer optimizer = new OffloadedConfig(ADAM, 1024).make(parameters, List.of())) {
            gradients(parameters, 0);
            optimizer.step(0.1f);
            gradients(parameters, 1);
            assertThrown(
                    CaptureException.class,
                    "step: expected a step that is not captured, since moments and masters are copied from the host's memory"
                            + " beside it; keep them on the device, or enqueue steps one by one",
                    () -> open.stream().capture(() -> optimizer.step(0.1f)));
        }
    }
}
