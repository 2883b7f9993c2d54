package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.SoftmaxType;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Configurations out of range, and devices used from where they may not be. */
@Tag("L0")
@Tag("L1")
class MisuseOfConfigsTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    private static AttentionConfig attention(int heads, int headDim) {
        return AttentionConfig.of(heads, headDim, AttentionMask.none());
    }

    @Test
    void headsAndTheirDimension() {
        for (int headDim : new int[] {0, -8, 7, 12, 264, Integer.MIN_VALUE, Integer.MAX_VALUE}) {
            assertThrown(
                    ARGUMENT,
                    "headDim: expected a multiple of 8 from 8 to 256, which attention's kernels take, got " + headDim,
                    () -> attention(2, headDim));
        }
        for (int heads : new int[] {0, -1}) {
            assertThrown(ARGUMENT, "heads: expected at least 1, got " + heads, () -> attention(heads, 8));
        }
        for (int keyHeads : new int[] {0, -1, 4, 5, 12}) {
            assertThrown(
                    ARGUMENT,
                    "keyHeads: expected a divisor of the 6 query heads, got " + keyHeads,
                    () -> attention(6, 8).withKeyHeads(keyHeads));
        }
        for (float scale : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "scale: expected a positive number, got " + scale,
                    () -> new AttentionConfig(
                            1,
                            1,
                            8,
                            AttentionMask.none(),
                            Dropout.none(),
                            scale,
                            QkNorm.none(),
                            Order.FASTEST,
                            0,
                            SoftmaxType.VANILLA));
        }
        for (float epsilon : new float[] {0, -1, Float.NaN}) {
            assertThrown(
                    ARGUMENT,
                    "epsilon: expected a positive number, got " + epsilon,
                    () -> QkNorm.of(QkNorm.Kind.L2).withEpsilon(epsilon));
        }
        assertThrown(
                ARGUMENT,
                "qkNorm: expected none, for attention takes query and key as they are, got L2; norm them before, or use"
                        + " MultiheadAttention",
                () -> new DotProductAttention(attention(6, 8).withQkNorm(QkNorm.of(QkNorm.Kind.L2))));
        assertThrown(
                NullPointerException.class,
                "mask: expected a value, got null",
                () -> new AttentionConfig(
                        1, 1, 8, null, Dropout.none(), 1, QkNorm.none(), Order.FASTEST, 0, SoftmaxType.VANILLA));
        assertThrown(
                NullPointerException.class,
                "dropout: expected a value, got null",
                () -> new AttentionConfig(
                        1, 1, 8, AttentionMask.none(), null, 1, QkNorm.none(), Order.FASTEST, 0, SoftmaxType.VANILLA));
        assertThrown(
                NullPointerException.class, "kind: expected a value, got null", () -> new AttentionMask(null, -1, -1));
        assertThrown(
                ARGUMENT,
                "window: expected -1 (unbounded) or more on each side, got -2 and 0",
                () -> AttentionMask.none().withWindow(-2, 0));
        assertThrown(
                ARGUMENT,
                "windowRight: a causal mask sees no later key, expected 0, got 1",
                () -> AttentionMask.causal().withWindow(4, 1));
        assertEquals(16, attention(2, 16).headDim());
    }

    @Test
    void probabilities() {
        for (float probability : new float[] {-0.1f, 1, 1.5f, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "probability: expected 0 <= probability < 1, got " + probability,
                    () -> Dropout.of(probability));
        }
        assertEquals(0.5f, Dropout.of(0.5f).probability());
        assertTrue(Dropout.of(0).isNone());
        assertTrue(Dropout.none().isNone());
        assertFalse(Dropout.of(1e-6f).isNone());
    }

    @Test
    void sizesOfLayers() {
        assertThrown(ARGUMENT, "size: expected at least 1, got 0", () -> NormConfig.layerNorm(0));
        assertThrown(ARGUMENT, "size: expected at least 1, got -3", () -> NormConfig.rmsNorm(-3));
        assertThrown(NullPointerException.class, "kind: expected a value, got null", () -> new NormConfig(null, 1, 1));
        for (float epsilon : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "epsilon: expected a positive number, got " + epsilon,
                    () -> new NormConfig(NormConfig.Kind.RMS_NORM, 8, epsilon));
            assertThrown(
                    ARGUMENT,
                    "epsilon: expected a positive number, got " + epsilon,
                    () -> new AdamW.Config(0.9f, 0.9f, epsilon, 0));
        }
        for (float decay : new float[] {-1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "weightDecay: expected a number of at least 0, got " + decay,
                    () -> new AdamW.Config(0.9f, 0.9f, 1e-8f, decay));
        }
        MlpConfig fed = MlpConfig.gelu(8);
        assertThrown(ARGUMENT, "inner: expected at least 1, got 0", () -> fed.withInner(0));
        assertThrown(
                NullPointerException.class, "activation: expected a value, got null", () -> fed.withActivation(null));
        assertThrown(
                ARGUMENT,
                "mlp: expected 16 columns as the norm, got 8",
                () -> TransformerLayerConfig.encoder(16, attention(2, 8)).withMlp(fed));
        assertThrown(
                NullPointerException.class,
                "hiddenDropout: expected a value, got null",
                () -> TransformerLayerConfig.encoder(8, attention(1, 8)).withHiddenDropout(null));
        assertThrown(
                NullPointerException.class,
                "dropPath: expected a value, got null",
                () -> TransformerLayerConfig.encoder(8, attention(1, 8)).withDropPath(null));
        assertThrown(ARGUMENT, "classes: expected at least 1, got 0", () -> new CrossEntropy(0));
        assertThrown(
                ARGUMENT,
                "standardDeviation: expected a number of at least 0, got NaN",
                () -> Initializer.normal(Float.NaN));
    }

    @Test
    void namesThatAreTaken() {
        ModelPlan plan = new ModelPlan();
        new Linear(8, 8, Initializer.ones(), plan.child("a"));
        assertThrown(
                ARGUMENT,
                "name: expected one that is not declared yet, got a.weight; give each layer a part of the plan of its own, such as plan.child(\"fc1\")",
                () -> new Linear(8, 8, Initializer.ones(), plan.child("a")));
        assertEquals(2, plan.parameters().size());
        assertThrows(
                UnsupportedOperationException.class, () -> plan.parameters().clear());
    }

    @Test
    void everythingFromAnotherThread() throws InterruptedException {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(8, 8, Initializer.ones(), plan);
        try (Device device = Device.open();
                Scope scope = device.openScope();
                HostBuffer buffer = HostBuffer.pinned(device, 32);
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                AdamW adam = new AdamW(parameters, new AdamW.Config(0.9f, 0.9f, 1e-8f, 0));
                Pass pass = Pass.training(device).begin()) {
            var x = scope.tensor(DType.FLOAT32, 1, 8);
            x.zero(device.stream());
            var y = linear.forward(x, pass);
            GradientNorm norm = new GradientNorm(parameters, 1);
            Executable[] uses = {
                () -> linear.forward(x, pass),
                () -> linear.backward(y, pass),
                pass::begin,
                pass::draw,
                pass::close,
                () -> Pass.training(device),
                () -> scope.tensor(DType.BYTE, 1),
                () -> scope.view(x, 0, 1),
                scope::restart,
                scope::open,
                scope::close,
                () -> x.toFloats(device.stream()),
                x::pointer,
                norm::compute,
                () -> adam.step(1),
                adam::close,
                parameters::close,
                buffer::close,
                () -> device.stream().close(),
                device::openEvent,
                device::freeMemory,
                device::synchronize,
                device::close
            };
            Consumer<Throwable> wrong = thrown -> assertEquals(
                    "device 0 belongs to thread \"" + Thread.currentThread().getName()
                            + "\", called from \"stranger\"; Device.detach() there and Device.attach() here move it",
                    thrown.getMessage());
            for (Executable use : uses) {
                Throwable[] thrown = new Throwable[1];
                Thread stranger = Thread.ofPlatform().name("stranger").start(() -> {
                    try {
                        use.execute();
                    } catch (Throwable failure) {
                        thrown[0] = failure;
                    }
                });
                stranger.join();
                assertEquals(WrongThreadException.class, thrown[0].getClass());
                wrong.accept(thrown[0]);
            }
            // Nothing was closed or lost: each of them still works.
            linear.backward(y, pass);
            norm.compute();
            adam.step(1, norm);
            assertArrayEquals(new float[8], linear.forward(x, pass.begin()).toFloats(device.stream()));
        }
    }
}
