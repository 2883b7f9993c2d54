package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.pass.Pass;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Calls of attention that do not belong together are refused, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseOfAttentionTest extends AttentionMisuse {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;
    private static final String SHARED = ": expected memory of its own, got some of ";
    private static final String REASON = "'s; it is written to while that is read or written";

    private Tensor heads() {
        Tensor q = scope.tensor(DType.BFLOAT16, 8, HEADS, HEAD_DIM);
        q.zero(stream);
        return q;
    }

    @Test
    void aGradientInThePlaceOfThePackedBuffer() {
        pass.begin(Sequences.packed(CuSeqlens.of(scope, 0, 8)));
        Tensor qkv = zeros(scope, 8, 3 * WIDTH);
        Tensor output = attention.forwardPacked(qkv, pass);
        Tensor dO = zeros(scope, 8, WIDTH);
        Tensor memory = zeros(scope, 16, 3 * WIDTH);
        Tensor dqkv = scope.view(memory, 0, 8, 3 * WIDTH);
        Tensor within = scope.view(memory, 3 * WIDTH, 8, WIDTH);
        assertThrown(ARGUMENT, "dqkv" + SHARED + "qkv" + REASON, () -> attention.backwardPacked(dO, qkv, pass));
        assertThrown(ARGUMENT, "dqkv" + SHARED + "qkv" + REASON, () -> attention.backwardPacked(output, qkv, pass));
        assertThrown(ARGUMENT, "dqkv" + SHARED + "dO" + REASON, () -> attention.backwardPacked(within, dqkv, pass));
        attention.backwardPacked(output, dqkv, pass);
        assertArrayEquals(new float[8 * 3 * WIDTH], dqkv.toFloats(stream));
    }

    @Test
    void gradientsThatShareMemory() {
        pass.begin(Sequences.packed(CuSeqlens.of(scope, 0, 8)));
        Tensor q = heads();
        Tensor k = heads();
        Tensor v = heads();
        Tensor output = attention.forward(q, k, v, pass);
        Tensor dO = heads();
        Tensor dq = heads();
        Tensor dk = heads();
        Tensor dv = heads();
        assertThrown(ARGUMENT, "dq" + SHARED + "dk" + REASON, () -> attention.backward(dO, dq, dq, dv, pass));
        assertThrown(ARGUMENT, "dq" + SHARED + "dv" + REASON, () -> attention.backward(dO, dq, dk, dq, pass));
        assertThrown(ARGUMENT, "dk" + SHARED + "dv" + REASON, () -> attention.backward(dO, dq, dk, dk, pass));
        assertThrown(ARGUMENT, "dq" + SHARED + "dO" + REASON, () -> attention.backward(dq, dq, dk, dv, pass));
        assertThrown(ARGUMENT, "dv" + SHARED + "the query" + REASON, () -> attention.backward(dO, dq, dk, q, pass));
        assertThrown(ARGUMENT, "dk" + SHARED + "the key" + REASON, () -> attention.backward(dO, dq, k, dv, pass));
        assertThrown(ARGUMENT, "dq" + SHARED + "the value" + REASON, () -> attention.backward(dO, v, dk, dv, pass));
        assertThrown(
                ARGUMENT, "dq" + SHARED + "the output" + REASON, () -> attention.backward(dO, output, dk, dv, pass));
        attention.backward(dO, dq, dk, dv, pass);
        assertArrayEquals(new float[8 * WIDTH], dv.toFloats(stream));
    }

    @Test
    void theGradientOfAnotherForm() {
        pass.begin(Sequences.packed(CuSeqlens.of(scope, 0, 8)));
        Tensor q = heads();
        Tensor qkv = zeros(scope, 8, 3 * WIDTH);
        attention.forwardPacked(qkv, pass);
        assertThrown(
                ARGUMENT,
                "attention: the last forward call was forwardPacked, whose gradient backwardPacked computes; got a call"
                        + " of backward",
                () -> attention.backward(heads(), heads(), heads(), heads(), pass));
        attention.forward(q, q, q, pass);
        assertThrown(
                ARGUMENT,
                "attention: the last forward call was forward, whose gradient backward computes; got a call of"
                        + " backwardPacked",
                () -> attention.backwardPacked(zeros(scope, 8, WIDTH), zeros(scope, 8, 3 * WIDTH), pass));
        // Both were refused before they changed the pass.
        attention.backward(heads(), heads(), heads(), heads(), pass);
        attention.backwardPacked(zeros(scope, 8, WIDTH), zeros(scope, 8, 3 * WIDTH), pass);
    }

    @Test
    void aTypeThatNoKernelTakes() {
        pass.begin(Sequences.packed(CuSeqlens.of(scope, 0, 8)));
        Tensor qkv = scope.tensor(DType.INT32, 8, 3 * WIDTH);
        assertThrown(
                ARGUMENT,
                "qkv: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[8, 96]",
                () -> attention.forwardPacked(qkv, pass));
        Tensor q = heads();
        Tensor other = scope.tensor(DType.FLOAT16, 8, HEADS, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "k: expected BFLOAT16 as q, got FLOAT16[8, 2, 16]",
                () -> attention.forward(q, other, other, pass));
        assertThrown(
                ARGUMENT,
                "v: expected BFLOAT16[8, 2, 16], got FLOAT16[8, 2, 16]",
                () -> attention.forward(q, q, other, pass));
    }

    @Test
    void headsOfTheKeysThatArePacked() {
        DotProductAttention grouped = new DotProductAttention(
                AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.none()).withKeyHeads(1));
        pass.begin(Sequences.packed(CuSeqlens.of(scope, 0, 8)));
        assertThrown(
                ARGUMENT,
                "qkv: one buffer holds as many heads of query, key and value, but attention has 2 query and 1 key heads;"
                        + " call forward(q, k, v, pass)",
                () -> grouped.forwardPacked(zeros(scope, 8, 3 * WIDTH), pass));
        assertThrown(
                ARGUMENT,
                "k: expected 1 heads of 16 over THD of 1 sequences, 8 tokens, got BFLOAT16[8, 2, 16]",
                () -> grouped.forward(heads(), heads(), heads(), pass));
    }

    @Test
    void callsOfAnotherAttentionPassOrMicroBatch() {
        packed(pass, 0, 8);
        Tensor dO = zeros(scope, 8, WIDTH);
        Tensor dqkv = zeros(scope, 8, 3 * WIDTH);
        String order = "; call backward in the reverse order of forward";
        assertThrown(
                STATE,
                "backward of attention was called, but the last forward was of another attention" + order,
                () -> attention().backwardPacked(dO, dqkv, pass));
        String nothing = "backward of attention was called, but no forward call waits for its backward; call forward"
                + " first, while the pass saves";
        try (Pass other = Pass.training(device).begin()) {
            assertThrown(STATE, nothing, () -> attention.backwardPacked(dO, dqkv, other));
        }
        attention.backwardPacked(dO, dqkv, pass);
        assertThrown(STATE, nothing, () -> attention.backwardPacked(dO, dqkv, pass));
        packed(pass, 0, 8);
        pass.begin();
        assertThrown(STATE, nothing, () -> attention.backwardPacked(dO, dqkv, pass));
        pass.close();
        assertThrown(
                STATE,
                "the training pass on stream of device 0 is closed; make another with Pass.training(stream)",
                () -> attention.backwardPacked(dO, dqkv, pass));
    }

    @Test
    void inputsWhoseScopeWasRestarted() {
        try (Scope own = device.openScope();
                Scope lengths = device.openScope()) {
            Tensor qkv = zeros(own, 8, 3 * WIDTH);
            pass.begin(Sequences.packed(CuSeqlens.of(lengths, 0, 8)));
            attention.forwardPacked(qkv, pass);
            Tensor dO = zeros(scope, 8, WIDTH);
            Tensor dqkv = zeros(scope, 8, 3 * WIDTH);
            own.restart();
            String lost = " has lost its memory since forward: its scope was restarted or closed; run forward again";
            assertThrown(STATE, "the query" + lost, () -> attention.backwardPacked(dO, dqkv, pass));
            zeros(own, 8, 3 * WIDTH);
            assertThrown(STATE, "the query" + lost, () -> attention.backwardPacked(dO, dqkv, pass));
            Tensor again = zeros(scope, 8, 3 * WIDTH);
            pass.begin(Sequences.packed(CuSeqlens.of(lengths, 0, 8)));
            attention.forwardPacked(again, pass);
            lengths.restart();
            lengths.tensor(DType.INT32, 2);
            lengths.tensor(DType.INT32, 2);
            assertThrown(STATE, "the lengths of the queries" + lost, () -> attention.backwardPacked(dO, dqkv, pass));
        }
    }

    @Test
    void anglesThatAreNoNumbers() {
        RotaryConfig config = RotaryConfig.of(4).withFrequencies(List.of(1.0, Double.MAX_VALUE));
        assertThrown(
                ARGUMENT,
                "config: expected angles that FLOAT32 holds, got Infinity at position 1 for " + config,
                () -> RotaryEmbedding.of(scope, 3, config));
    }

    @Test
    void moreAnglesThanAnArrayHolds() {
        assertThrown(
                ARGUMENT,
                "positions, rotatedDim: expected a product of at most 2147483639 angles, got 1073741824 and 4",
                () -> RotaryEmbedding.of(scope, 1 << 30, 4));
    }

    @Test
    void viewsThatBeginOffSixteenBytes() {
        pass.begin(Sequences.packed(scope, 3, 5));
        Tensor memory = zeros(scope, 9, WIDTH);
        Tensor q = scope.view(memory, 0, 8, HEADS, HEAD_DIM);
        Tensor off = scope.view(memory, 1, 8, HEADS, HEAD_DIM);
        String rest = ": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                + " view that does not; copy it into a tensor";
        assertThrown(ARGUMENT, "q" + rest, () -> attention.forward(off, q, q, pass));
        assertThrown(ARGUMENT, "k" + rest, () -> attention.forward(q, off, q, pass));
        assertThrown(ARGUMENT, "v" + rest, () -> attention.forward(q, q, off, pass));
        Tensor wide = zeros(scope, 9, 3 * WIDTH);
        assertThrown(ARGUMENT, "qkv" + rest, () -> attention.forwardPacked(scope.view(wide, 4, 8, 3 * WIDTH), pass));
        attention.forward(q, q, q, pass);
        Tensor more = zeros(scope, 9, WIDTH);
        Tensor dq = scope.view(more, 1, 8, HEADS, HEAD_DIM);
        Tensor dk = scope.like(q);
        Tensor dv = scope.like(q);
        Tensor dO = scope.like(q);
        assertThrown(ARGUMENT, "dq" + rest, () -> attention.backward(dO, dq, dk, dv, pass));
        assertThrown(ARGUMENT, "dO" + rest, () -> attention.backward(dq, dO, dk, dv, pass));
    }
}
