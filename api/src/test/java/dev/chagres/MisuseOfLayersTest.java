package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.RmsNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.Arrays;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Backward of another layer, pass or micro-batch: refused before it has changed any gradient. */
@Tag("L0")
@Tag("L1")
class MisuseOfLayersTest {
    private static final String NOTHING_WAITS = "backward of 0 was called, but no forward call waits for its backward;"
            + " call forward first, while the pass saves";

    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;
    private static final String SHARED = ": expected memory of its own, got some of ";
    private static final String REASON = "'s; it is written to while that is read or written";
    private static final int HIDDEN = 32;

    private final ModelPlan plan = new ModelPlan();
    private final TransformerLayer first = new TransformerLayer(config(Dropout.none()), plan.child("0"));
    private final TransformerLayer second = new TransformerLayer(config(Dropout.none()), plan.child("1"));
    private final TransformerLayer dropping = new TransformerLayer(config(Dropout.of(0.5f)), plan.child("2"));
    private Device device;
    private Stream stream;
    private Scope scope;
    private Pass pass;
    private Parameters parameters;
    private Sequences sequences;
    private Tensor x;

    private static TransformerLayerConfig config(Dropout dropout) {
        return TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()))
                .withHiddenDropout(dropout);
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
        pass = Pass.training(device).begin(sequences);
    }

    @AfterEach
    void goodCallsStillWork() {
        pass.close();
        try (Pass fresh = Pass.training(device).begin()) {
            fresh.sequences(Sequences.packed(CuSeqlens.of(fresh.scope(), 0, 3)));
            Tensor input = fresh.scope().tensor(DType.BFLOAT16, 3, HIDDEN);
            input.zero(stream);
            Tensor dy = fresh.scope().like(first.forward(input, fresh));
            dy.zero(stream);
            first.backward(dy, dy, fresh);
            assertArrayEquals(new float[3 * HIDDEN], dy.toFloats(stream));
        }
        device.close();
    }

    /** Checks that a refused backward has left all gradients as they were: zeros. */
    private void assertNoGradientChanged() {
        assertArrayEquals(
                new float[(int) parameters.gradients().count()],
                parameters.gradients().toFloats(stream));
        parameters.all().forEach(parameter -> assertEquals(false, parameter.hasGradient(), parameter.name()));
    }

    private Tensor ones(Tensor like) {
        Tensor tensor = scope.like(like);
        float[] values = new float[(int) like.count()];
        Arrays.fill(values, 1);
        tensor.set(stream, values);
        return tensor;
    }

    private static String order(String called, String last) {
        return "backward of " + called + " was called, but the last forward was of " + last
                + "; call backward in the reverse order of forward";
    }

    @Test
    void backwardOfAnotherLayer() {
        Tensor dy = ones(x);
        second.forward(x, pass);
        assertThrown(STATE, order("0", "1"), () -> first.backward(dy, pass));
        assertThrown(STATE, order("0", "1"), () -> first.backward(dy, dy, pass));
        assertThrown(STATE, order("0.attention", "1"), () -> first.attention().backward(dy, pass));
        assertThrown(STATE, order("1.mlp", "1"), () -> second.mlp().backward(dy, pass));
        assertThrown(
                STATE,
                order("1.attention.projection", "1"),
                () -> second.attention().projection().backward(dy, pass));
        dropping.forward(x, pass);
        assertThrown(STATE, order("1", "2"), () -> second.backward(dy, pass));
        CrossEntropy loss = new CrossEntropy(20);
        assertThrown(STATE, order("cross-entropy of 20 classes", "2"), () -> loss.backward(pass));
        loss.forward(ones(x), scope.tensor(DType.INT32, 8), pass);
        assertThrown(STATE, order("2", "cross-entropy of 20 classes"), () -> dropping.backward(dy, pass));
        CrossEntropy other = new CrossEntropy(20);
        assertThrown(
                STATE,
                order("cross-entropy of 20 classes", "another cross-entropy of 20 classes"),
                () -> other.backward(pass));
        assertNoGradientChanged();
    }

    @Test
    void backwardOfAnotherPassOrMicroBatch() {
        Tensor dy = ones(x);
        try (Pass other = Pass.training(device).begin(sequences)) {
            first.forward(x, pass);
            second.forward(x, other);
            assertThrown(STATE, order("1", "0"), () -> second.backward(dy, pass));
            assertThrown(STATE, order("0", "1"), () -> first.backward(dy, other));
            assertNoGradientChanged();
            second.backward(dy, other);
            first.backward(dy, pass);
        }
        parameters.forgetGradients();
        parameters.gradients().zero(stream);
        first.forward(x, pass);
        pass.begin(sequences);
        assertThrown(STATE, NOTHING_WAITS, () -> first.backward(dy, pass));
        try (Pass evaluation = Pass.evaluation(device).begin(sequences)) {
            first.forward(x, evaluation);
            assertThrown(
                    STATE,
                    "backward of 0 was called, but this pass evaluates and saves nothing; make one with Pass.training",
                    () -> first.backward(dy, evaluation));
        }
        first.forward(x, pass);
        pass.close();
        assertThrown(
                STATE,
                "the training pass on stream of device 0 is closed; make another with Pass.training(stream)",
                () -> first.backward(dy, pass));
        assertNoGradientChanged();
    }

    @Test
    void inputsThatAreClosedOrOfTheRepetitionBefore() {
        Scope step = device.openScope();
        Tensor input = step.tensor(DType.BFLOAT16, 8, HIDDEN);
        input.zero(stream);
        first.forward(input, pass);
        Tensor dy = ones(x);
        step.restart();
        String lost =
                "the input has lost its memory since forward: its scope was restarted or closed; run forward again";
        assertThrown(STATE, lost, () -> first.backward(dy, pass));
        for (int i = 0; i < 40; i++) {
            step.tensor(DType.BFLOAT16, 2);
        }
        assertThrown(STATE, lost, () -> first.backward(dy, pass));
        step.close();
        assertThrown(STATE, lost, () -> first.backward(dy, pass));
        assertThrown(
                STATE,
                "tensor BFLOAT16[8, 32] of scope of device 0 is closed: so is its scope",
                () -> first.forward(input, pass));
        assertNoGradientChanged();
    }

    @Test
    void twiceGivesTheSameAndAddsUp() {
        RmsNorm norm = new RmsNorm(NormConfig.rmsNorm(HIDDEN), new ModelPlan());
        assertThrown(
                STATE, "parameter weight has no memory yet: call Parameters.allocate", () -> norm.forward(x, pass));
        Tensor input = ones(x);
        Tensor dy = ones(x);
        first.forward(input, pass);
        float[] dx = first.backward(dy, pass).toFloats(stream);
        float[] once = parameters.gradients().toFloats(stream);
        assertThrown(STATE, NOTHING_WAITS, () -> first.backward(dy, pass));
        first.forward(input, pass);
        assertArrayEquals(dx, first.backward(dy, pass).toFloats(stream));
        float[] twice = parameters.gradients().toFloats(stream);
        for (int i = 0; i < once.length; i++) {
            once[i] *= 2;
        }
        assertArrayEquals(once, twice, 1e-4f);
    }

    @Test
    void gradientsInThePlaceOfInputs() {
        Tensor input = ones(x);
        Tensor y = first.forward(input, pass);
        Tensor dy = ones(x);
        assertThrown(ARGUMENT, "dx" + SHARED + "the input" + REASON, () -> first.backward(dy, input, pass));
        assertThrown(ARGUMENT, "dx" + SHARED + "the input" + REASON, () -> first.backward(input, input, pass));
        assertThrown(ARGUMENT, "dx" + SHARED + "the output" + REASON, () -> first.backward(dy, y, pass));
        Tensor memory = scope.tensor(DType.BFLOAT16, 9, HIDDEN);
        Tensor upper = scope.view(memory, 0, 8, HIDDEN);
        Tensor lower = scope.view(memory, HIDDEN, 8, HIDDEN);
        assertThrown(ARGUMENT, "dx" + SHARED + "dy" + REASON, () -> first.backward(upper, lower, pass));
        assertThrown(ARGUMENT, "y" + SHARED + "x" + REASON, () -> first.forward(upper, lower, pass));
        assertThrown(ARGUMENT, "y" + SHARED + "x" + REASON, () -> first.forward(input, input, pass));
        assertNoGradientChanged();
    }

    @Test
    void resultsInTrustedMemory() {
        int[] offsets = new int[8 * HIDDEN / 2 + 1];
        CuSeqlens lengths = CuSeqlens.of(scope, offsets);
        Tensor trusted = scope.view(scope.reinterpret(lengths.offsets(), DType.BFLOAT16, 0, 8 * HIDDEN), 0, 8, HIDDEN);
        String text = ": expected a tensor whose elements may change, got the offsets of a CuSeqlens or the angles of a"
                + " RotaryEmbedding, which are trusted once made";
        assertThrown(ARGUMENT, "y" + text, () -> first.forward(x, trusted, pass));
        assertThrown(
                ARGUMENT,
                "logits" + text,
                () -> new CrossEntropy(20).forward(trusted, scope.tensor(DType.INT32, 8), pass));
        first.forward(x, pass);
        assertThrown(ARGUMENT, "dx" + text, () -> first.backward(ones(x), trusted, pass));
        assertArrayEquals(offsets, lengths.offsets().toInts(stream));
        assertNoGradientChanged();
    }

    @Test
    void viewsThatBeginOffSixteenBytes() {
        Tensor memory = scope.tensor(DType.BFLOAT16, 9, HIDDEN);
        memory.zero(stream);
        Tensor off = scope.view(memory, 1, 8, HIDDEN);
        String rest = ": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                + " view that does not; copy it into a tensor";
        assertThrown(ARGUMENT, "x" + rest, () -> first.forward(off, pass));
        assertThrown(ARGUMENT, "y" + rest, () -> first.forward(x, off, pass));
        first.forward(x, pass);
        assertThrown(ARGUMENT, "dy" + rest, () -> first.backward(off, pass));
        assertThrown(ARGUMENT, "dx" + rest, () -> first.backward(ones(x), off, pass));
        assertNoGradientChanged();
    }

    @Test
    void rotationsOfAnotherSize() {
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, 8);
        assertThrown(ARGUMENT, "rotary: expected head dimension 16, got 8", () -> first.rotate(rotary));
        assertThrown(NullPointerException.class, "rotary: expected a value, got null", () -> first.rotate(null));
        second.rotate(RotaryEmbedding.of(scope, 4, 16));
        assertThrown(
                ARGUMENT,
                "sequences: expected none longer than the 4 positions of the rotary embedding, got 5",
                () -> second.forward(x, pass));
        assertNoGradientChanged();
    }

    /** Backward undoes the rotation of its own forward, whatever was chosen for the next one. */
    @Test
    void anotherRotationBetweenForwardAndBackward() {
        Tensor input = ones(x);
        Tensor dy = ones(x);
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, 16);
        RotaryEmbedding longer = RotaryEmbedding.of(scope, 5, 16);
        first.rotate(rotary);
        first.forward(input, pass);
        float[] dx = first.backward(dy, pass).toFloats(stream);
        float[] gradients = parameters.gradients().toFloats(stream);
        parameters.nextStep();
        first.forward(input, pass);
        first.rotate(longer);
        assertArrayEquals(dx, first.backward(dy, pass).toFloats(stream));
        assertArrayEquals(gradients, parameters.gradients().toFloats(stream));
        parameters.nextStep();
        first.forward(input, pass);
        try (Scope own = device.openScope()) {
            first.rotate(RotaryEmbedding.of(own, 8, 16));
            first.forward(input, pass);
        }
        assertThrown(
                STATE,
                "tensor FLOAT32[8, 1, 1, 16] of scope of device 0 is closed: so is its scope",
                () -> first.backward(dy, pass));
        first.rotate(rotary);
    }

    /** A refused call leaves the random numbers as they were: the next one draws what it would have drawn. */
    @Test
    void aRefusedCallDrawsNothing() {
        Sequential both = new Sequential("both", dropping, second);
        RotaryEmbedding good = RotaryEmbedding.of(scope, 8, 16);
        Tensor input = ones(x);
        pass.seed(1, 2, 3);
        second.rotate(good);
        float[] expected = both.forward(input, pass).toFloats(stream);
        pass.begin(sequences);
        pass.seed(1, 2, 3);
        second.rotate(RotaryEmbedding.of(scope, 4, 16));
        assertThrown(
                ARGUMENT,
                "sequences: expected none longer than the 4 positions of the rotary embedding, got 5",
                () -> both.forward(input, pass));
        second.rotate(good);
        assertArrayEquals(expected, both.forward(input, pass).toFloats(stream));
        both.backward(ones(x), pass);
    }

    @Test
    void tensorsAndPassesOfAnotherStream() {
        try (Stream other = device.openStream();
                Pass there = Pass.training(other).begin(sequences)) {
            stream.synchronize();
            Tensor y = first.forward(x, there);
            other.synchronize();
            assertArrayEquals(new float[8 * HIDDEN], y.toFloats(stream), "streams are the caller's to order");
        }
    }
}
