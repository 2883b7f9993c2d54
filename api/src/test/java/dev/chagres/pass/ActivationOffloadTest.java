package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.CaptureException;
import dev.chagres.conformance.Allocation;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Inputs of layers that lie in the host's memory between forward and backward: no bit differs, and their number costs no memory of the device. */
@Tag("L0")
@Tag("L1")
class ActivationOffloadTest {
    private static final int HIDDEN = 32;
    private static final Initializer WEIGHTS = Initializer.normal(0.2f);
    private static final TransformerLayerConfig LAYER = TransformerLayerConfig.encoder(
                    HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()))
            .withInitializer(WEIGHTS)
            .withHiddenDropout(Dropout.of(0.1f));

    /** What layers are inside. */
    enum Kind {
        /** Each keeps its input alone. */
        RECOMPUTED,
        /** Each keeps whatever backward reads. */
        PLAIN,
        /** Products and activations of several widths, which read their outputs, too, or their inputs. */
        WIDTHS
    }

    record Case(Kind kind, DType dtype, int layers, MemoryReuse reuse) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Kind kind : Kind.values()) {
            for (int layers : new int[] {4, 5, 6, 8, Integer.MAX_VALUE}) {
                cases.add(new Case(kind, DType.FLOAT32, layers, MemoryReuse.USUAL));
            }
            cases.add(new Case(kind, DType.BFLOAT16, Integer.MAX_VALUE, MemoryReuse.POISONED));
            cases.add(new Case(kind, DType.BFLOAT16, Integer.MAX_VALUE, MemoryReuse.NEVER));
        }
        return cases;
    }

    /** Layers, one after another, with their parameters. */
    private static final class Stack implements AutoCloseable {
        private final Device device;
        private final ModelPlan plan = new ModelPlan();
        private final Sequential layers;
        private final Parameters parameters;
        private final Scope inputs;

        Stack(Device device, Kind kind, int height, DType dtype) {
            this(device, kind, height, dtype, UnaryOperator.identity());
        }

        Stack(Device device, Kind kind, int height, DType dtype, UnaryOperator<Layer> third) {
            this.device = device;
            layers = Sequential.of(height, i -> i == 2 ? third.apply(layer(kind, i)) : layer(kind, i));
            parameters = Parameters.allocate(device, plan, dtype, 7);
            inputs = device.openScope();
        }

        private Layer layer(Kind kind, int number) {
            ModelPlan own = plan.group("layers." + number);
            return switch (kind) {
                case RECOMPUTED -> new Recomputed(new TransformerLayer(LAYER, own));
                case PLAIN -> new TransformerLayer(LAYER, own);
                case WIDTHS ->
                    number % 3 == 2
                            ? new ActivationLayer(own.name(), Activation.GELU)
                            : new Linear(number % 3 == 0 ? HIDDEN : 80, number % 3 == 0 ? 80 : HIDDEN, WEIGHTS, own);
            };
        }

        Tensor random(Scope scope, int tokens, long seed) {
            var random = new SplittableRandom(seed);
            float[] values = new float[tokens * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) random.nextDouble(-1, 1);
            }
            Tensor tensor = scope.tensor(parameters.dtype(), tokens, HIDDEN);
            tensor.set(device.stream(), values);
            return tensor;
        }

        /** Returns the output, the input's gradient and those of all parameters. */
        List<float[]> step(Pass pass, int tokens) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), tokens - 5, 5));
            pass.seed(3, 1, 0);
            Tensor x = random(pass.scope(), tokens, 1);
            Tensor y = layers.forward(x, pass);
            List<float[]> all = new ArrayList<>();
            all.add(y.toFloats(device.stream()));
            all.add(layers.backward(random(pass.scope(), tokens, 2), pass).toFloats(device.stream()));
            for (Parameter parameter : parameters.all()) {
                all.add(parameter.gradient().toFloats(device.stream()));
            }
            parameters.forgetGradients();
            return all;
        }

        @Override
        public void close() {
            inputs.close();
            parameters.close();
        }
    }

    private static void assertSame(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "result " + i);
        }
    }

    /** Steps of several sizes, of which the longest is not the first. */
    @ParameterizedTest
    @MethodSource("cases")
    void changesNoBit(Case c) {
        try (Device device = Device.open();
                Stack stack = new Stack(device, c.kind, 9, c.dtype)) {
            List<List<float[]>> expected = new ArrayList<>();
            try (Pass pass = Pass.training(device)) {
                for (int tokens : new int[] {20, 33, 20}) {
                    expected.add(stack.step(pass, tokens));
                }
                assertEquals(0, pass.hostBytes());
            }
            MemoryReuse.choose(c.reuse);
            try (Pass pass = Pass.training(device)) {
                pass.offload(new ActivationOffload(c.layers));
                assertSame(expected.get(0), stack.step(pass, 20));
                assertSame(expected.get(1), stack.step(pass, 33));
                assertSame(expected.get(2), stack.step(pass, 20));
                int copied = Math.min(c.layers, 9) - 4;
                assertEquals(copied, pass.offload().copied(9));
                long bytes = 33L * (c.kind == Kind.WIDTHS ? 80 : HIDDEN) * c.dtype.byteSize();
                assertEquals((copied * bytes + 255) & -256, pass.hostBytes());
                pass.offload(ActivationOffload.none());
                assertSame(expected.get(0), stack.step(pass, 20));
            }
        } finally {
            MemoryReuse.choose(MemoryReuse.USUAL);
        }
    }

    private static long peak(int height, ActivationOffload offload) {
        try (Device device = Device.open();
                Stack stack = new Stack(device, Kind.RECOMPUTED, height, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            pass.offload(offload);
            for (int i = 0; i < 2; i++) {
                stack.step(pass, 64);
            }
            return pass.peakBytes();
        }
    }

    @Test
    void moreLayersTakeNoMoreMemoryOfTheDevice() {
        long tensor = 64L * HIDDEN * Float.BYTES;
        assertEquals(peak(5, ActivationOffload.all()), peak(12, ActivationOffload.all()));
        assertEquals(7 * tensor, peak(12, ActivationOffload.none()) - peak(5, ActivationOffload.none()));
        // Of twelve layers eleven inputs are between layers; three buffers hold those of the first seven.
        assertEquals(
                4 * tensor, peak(12, ActivationOffload.none()) - peak(12, new ActivationOffload(8)), "seven in three");
    }

    @Test
    void twoStacksOfAPassHaveMemoryOfTheirOwn() {
        try (Device device = Device.open();
                Stack first = new Stack(device, Kind.RECOMPUTED, 6, DType.FLOAT32);
                Stack second = new Stack(device, Kind.WIDTHS, 9, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            List<List<float[]>> results = new ArrayList<>();
            for (ActivationOffload offload : List.of(ActivationOffload.none(), ActivationOffload.all())) {
                pass.offload(offload);
                pass.begin();
                pass.sequences(Sequences.packed(pass.scope(), 11));
                pass.seed(3, 1, 0);
                Tensor x = first.random(pass.scope(), 11, 1);
                Tensor y = second.layers.forward(first.layers.forward(x, pass), pass);
                Tensor dy = first.random(pass.scope(), 11, 2);
                Tensor dx = first.layers.backward(second.layers.backward(dy, pass), pass);
                results.add(List.of(
                        y.toFloats(device.stream()),
                        dx.toFloats(device.stream()),
                        first.parameters.all().getFirst().gradient().toFloats(device.stream())));
                first.parameters.forgetGradients();
                second.parameters.forgetGradients();
            }
            assertSame(results.get(0), results.get(1));
            assertEquals(2 * 11 * HIDDEN * 4 + 5 * 11 * 80 * 4 + (256 - 5 * 11 * 80 * 4 % 256), pass.hostBytes());
        }
    }

    @Test
    void aCallThatFailsIsRepeated() {
        try (Device device = Device.open()) {
            List<FailingLayer> failing = new ArrayList<>();
            try (Stack stack = new Stack(device, Kind.RECOMPUTED, 9, DType.FLOAT32, layer -> {
                        failing.add(FailingLayer.around(layer, FailingLayer.Fails.NEVER));
                        return failing.getFirst();
                    });
                    Pass pass = Pass.training(device)) {
                List<float[]> expected = stack.step(pass, 20);
                pass.offload(ActivationOffload.all());
                for (FailingLayer.Fails fails : FailingLayer.Fails.values()) {
                    failing.getFirst().fails(fails);
                    if (fails != FailingLayer.Fails.NEVER) {
                        assertThrows(IllegalStateException.class, () -> stack.step(pass, 20));
                    }
                    failing.getFirst().fails(FailingLayer.Fails.NEVER);
                    assertSame(expected, stack.step(pass, 20));
                }
            }
        }
    }

    @Test
    void isExplained() {
        try (Device device = Device.open();
                Stack stack = new Stack(device, Kind.WIDTHS, 9, DType.FLOAT32);
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            pass.begin();
            Tensor x = stack.random(pass.scope(), 4, 1);
            assertTrue(stack.layers.explain(x, pass).startsWith("layers\n"));
            // @start region="offload"
            pass.offload(ActivationOffload.all());
            // @end
            assertTrue(stack.layers
                    .explain(x, pass)
                    .startsWith("layers: the inputs of layers 1 to 5 of 8 lie in the host's memory between forward and"
                            + " backward; two streams copy them beside the layers\n"));
            evaluation.offload(ActivationOffload.all());
            evaluation.begin();
            assertTrue(stack.layers.explain(x, evaluation).startsWith("layers\n"), "evaluation saves nothing");
            assertEquals(
                    "[none, all, 3]",
                    List.of(evaluation.offload().isNone() ? "" : "none", pass.offload(), new ActivationOffload(3))
                            .toString());
            assertThrown(
                    IllegalArgumentException.class,
                    "layers: expected at least 0, got -1",
                    () -> new ActivationOffload(-1));
        }
    }

    @Test
    void capturesAreRefused() {
        try (Device device = Device.open();
                Stack stack = new Stack(device, Kind.WIDTHS, 9, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            pass.offload(ActivationOffload.all());
            List<float[]> expected = stack.step(pass, 20);
            Tensor x = stack.random(stack.inputs, 20, 1);
            pass.begin();
            assertThrown(
                    CaptureException.class,
                    "forward: expected a pass that is not captured, since inputs of layers are copied to the host's memory"
                            + " beside it; keep them on the device by pass.offload(ActivationOffload.none()), or enqueue"
                            + " steps one by one",
                    () -> device.stream().capture(() -> stack.layers.forward(x, pass)));
            pass.begin();
            Tensor y = stack.layers.forward(x, pass);
            assertThrown(
                    CaptureException.class,
                    "backward: expected a pass that is not captured, since inputs of layers are copied to the host's memory"
                            + " beside it; keep them on the device by pass.offload(ActivationOffload.none()), or enqueue"
                            + " steps one by one",
                    () -> device.stream().capture(() -> stack.layers.backward(y, pass)));
            assertSame(expected, stack.step(pass, 20));
        }
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        try (Device device = Device.open();
                Stack stack = new Stack(device, Kind.WIDTHS, 9, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            pass.offload(ActivationOffload.all());
            Sequences[] sequences = IntStream.of(20, 7)
                    .mapToObj(tokens -> Sequences.packed(stack.inputs, tokens))
                    .toArray(Sequences[]::new);
            Tensor[] x = {stack.random(stack.inputs, 20, 1), stack.random(stack.inputs, 7, 1)};
            int[] count = {0};
            Runnable step = () -> {
                int which = count[0]++ % 2;
                pass.begin(sequences[which]);
                stack.layers.forward(x[which], pass);
                stack.layers.backward(x[which], pass);
                stack.parameters.nextStep();
            };
            for (int i = 0; i < 20; i++) {
                step.run();
            }
            Allocation.assertNone("a step", step, 150);
        }
    }
}
