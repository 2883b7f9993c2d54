package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Accumulation;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.layer.RmsNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Records of another layer, scope or repetition: backward refuses them before it has changed any gradient. */
@Tag("L0")
@Tag("L1")
class MisuseOfLayersTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;
    private static final int HIDDEN = 32;

    private final ParameterPlan plan = new ParameterPlan();
    private final TransformerLayer first = new TransformerLayer(config(Dropout.none()), plan.child("0"));
    private final TransformerLayer second = new TransformerLayer(config(Dropout.none()), plan.child("1"));
    private final TransformerLayer dropping =
            new TransformerLayer(config(Dropout.of(0.5f, new Philox(1))), plan.child("2"));
    private Device device;
    private Stream stream;
    private Scope scope;
    private Parameters parameters;
    private Sequences sequences;
    private Tensor x;

    private static TransformerLayerConfig config(Dropout dropout) {
        return TransformerLayerConfig.encoder(
                HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none(), Dropout.none()), dropout);
    }

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
        sequences = Sequences.packed(CuSeqlens.of(scope, 0, 3, 8));
        x = scope.tensor(DType.BFLOAT16, 8, HIDDEN);
        x.zero(stream);
    }

    @AfterEach
    void goodCallsStillWork() {
        try (Scope fresh = device.openScope()) {
            Sequences three = Sequences.packed(CuSeqlens.of(fresh, 0, 3));
            Tensor input = fresh.tensor(DType.BFLOAT16, 3, HIDDEN);
            input.zero(stream);
            TransformerLayer.Saved saved = first.forward(input, three, fresh);
            Tensor dy = fresh.like(saved.output());
            dy.zero(stream);
            first.backwardInPlace(dy, saved, Accumulation.OVERWRITE, fresh);
            assertArrayEquals(new float[3 * HIDDEN], dy.toFloats(stream));
        }
        device.close();
    }

    /** Checks that a refused backward has left all gradients as they were: zeros. */
    private void assertNoGradientChanged() {
        assertArrayEquals(
                new float[(int) parameters.gradients().count()],
                parameters.gradients().toFloats(stream));
    }

    private Tensor ones(Tensor like) {
        Tensor tensor = scope.like(like);
        float[] values = new float[(int) like.count()];
        java.util.Arrays.fill(values, 1);
        tensor.set(stream, values);
        return tensor;
    }

    @Test
    void recordsOfAnotherLayer() {
        TransformerLayer.Saved saved = second.forward(x, sequences, scope);
        Tensor dy = ones(saved.output());
        String text =
                "saved: expected what forward of the layer with parameter 0.attention.qkv.norm.weight returned, got"
                        + " that of the layer with parameter 1.attention.qkv.norm.weight";
        assertThrown(ARGUMENT, text, () -> first.backward(dy, saved, Accumulation.ADD, scope));
        assertThrown(ARGUMENT, text, () -> first.backwardInPlace(dy, saved, Accumulation.ADD, scope));
        assertThrown(ARGUMENT, text, () -> first.attention().backward(dy, saved.attention(), Accumulation.ADD, scope));
        assertThrown(
                ARGUMENT,
                text.replace("attention.qkv", "mlp"),
                () -> first.mlp().backward(dy, saved.mlp(), Accumulation.ADD, scope));
        assertThrown(
                ARGUMENT,
                "saved.middle: expected the sum in the middle, got null",
                () -> dropping.backward(
                        dy, mixed(dropping.forward(x, sequences, scope), saved), Accumulation.ADD, scope));
        assertNoGradientChanged();
    }

    private static TransformerLayer.Saved mixed(TransformerLayer.Saved own, TransformerLayer.Saved other) {
        return new TransformerLayer.Saved(own.attention(), other.middle(), own.mlp(), own.last());
    }

    @Test
    void recordsPutTogetherByHand() {
        TransformerLayer.Saved saved = first.forward(x, sequences, scope);
        Linear.Saved product = saved.attention().projection();
        Linear projection = first.attention().projection();
        Tensor dy = ones(product.output());
        Tensor narrow = scope.tensor(DType.BFLOAT16, 8, 16);
        assertThrown(
                ARGUMENT,
                "saved.input: expected BFLOAT16[T, 32], got BFLOAT16[8, 16]",
                () -> projection.backward(
                        dy, new Linear.Saved(projection, narrow, product.output()), Accumulation.ADD, scope));
        assertThrown(
                ARGUMENT,
                "saved.output: expected BFLOAT16[8, 32], got BFLOAT16[5, 32]",
                () -> projection.backward(
                        dy,
                        new Linear.Saved(projection, product.input(), scope.tensor(DType.BFLOAT16, 5, 32)),
                        Accumulation.ADD,
                        scope));
        var norm = saved.attention().qkv().norm();
        assertThrown(
                ARGUMENT,
                "saved.mean: expected FLOAT32[8], got FLOAT32[7]",
                () -> norm.layer()
                        .backward(
                                dy,
                                new LayerNorm.Saved(
                                        norm.layer(),
                                        norm.input(),
                                        norm.output(),
                                        scope.tensor(DType.FLOAT32, 7),
                                        norm.inverseDeviation()),
                                Accumulation.ADD,
                                scope));
        CrossEntropy loss = new CrossEntropy(20);
        CrossEntropy.Saved counted = loss.forward(dy, scope.tensor(DType.INT32, 8), scope);
        assertThrown(
                ARGUMENT,
                "saved.labels: expected INT32[8], got INT32[1]",
                () -> loss.backward(
                        new CrossEntropy.Saved(
                                dy, counted.counted(), counted.logSumExp(), counted.loss(), counted.counted()),
                        1,
                        scope));
        assertThrown(
                ARGUMENT,
                "saved.logits: expected [T, at least 33 columns] of floats, got BFLOAT16[8, 32]",
                () -> new CrossEntropy(33).backward(counted, 1, scope));
        assertNoGradientChanged();
    }

    @Test
    void recordsOfAClosedScopeOrOfTheRepetitionBefore() {
        Scope step = device.openScope();
        TransformerLayer.Saved saved = first.forward(x, sequences, step);
        Tensor dy = ones(x);
        step.restart();
        assertThrown(
                STATE,
                "tensor BFLOAT16[8, 32] of scope of device 0 is closed: the scope was restarted since",
                () -> first.backward(dy, saved, Accumulation.ADD, scope));
        for (int i = 0; i < 40; i++) {
            step.tensor(DType.BFLOAT16, 2);
        }
        assertThrows(RuntimeException.class, () -> first.backward(dy, saved, Accumulation.ADD, scope));
        step.close();
        assertThrows(STATE, () -> first.backward(dy, saved, Accumulation.ADD, scope));
        assertNoGradientChanged();
    }

    @Test
    void twiceGivesTheSameAndAddsUp() {
        RmsNorm norm = new RmsNorm(NormConfig.rmsNorm(HIDDEN), new ParameterPlan());
        assertThrown(
                STATE, "parameter weight has no memory yet: call Parameters.allocate", () -> norm.forward(x, scope));
        TransformerLayer.Saved saved = first.forward(ones(x), sequences, scope);
        Tensor dy = ones(x);
        float[] dx = first.backward(dy, saved, Accumulation.OVERWRITE, scope).toFloats(stream);
        float[] once = parameters.gradients().toFloats(stream);
        assertArrayEquals(dx, first.backward(dy, saved, Accumulation.ADD, scope).toFloats(stream));
        float[] twice = parameters.gradients().toFloats(stream);
        for (int i = 0; i < once.length; i++) {
            once[i] *= 2;
        }
        assertArrayEquals(once, twice, 1e-4f);
    }

    @Test
    void gradientsInThePlaceOfInputs() {
        Tensor input = ones(x);
        TransformerLayer.Saved saved = first.forward(input, sequences, scope);
        String reason = "'s; it is written to while that is read or written";
        assertThrown(
                ARGUMENT,
                "dy: expected memory of its own, got some of the input" + reason,
                () -> first.backwardInPlace(input, saved, Accumulation.ADD, scope));
        assertNoGradientChanged();
    }

    @Test
    void rotationsOfAnotherSize() {
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, 8);
        assertThrown(ARGUMENT, "by: expected head dimension 16, got 8", () -> first.rotate(rotary));
        second.rotate(RotaryEmbedding.of(scope, 4, 16));
        assertThrown(
                ARGUMENT,
                "sequences: expected none longer than the 4 positions of the rotary embedding, got 5",
                () -> second.forward(x, sequences, scope));
    }

    @Test
    void scopesWithAnOpenChild() {
        Scope child = scope.open();
        assertThrown(
                STATE,
                "scope of device 0 has an open nested scope, which must be closed first",
                () -> first.forward(x, sequences, scope));
        first.forward(x, sequences, child);
        child.close();
    }

    @Test
    void tensorsAndStreamsOfAnotherStream() {
        try (Stream other = device.openStream();
                Scope there = device.openScope(other)) {
            stream.synchronize();
            TransformerLayer.Saved saved = first.forward(x, sequences, there);
            other.synchronize();
            assertArrayEquals(
                    new float[8 * HIDDEN], saved.output().toFloats(stream), "streams are the caller's to order");
        }
    }
}
