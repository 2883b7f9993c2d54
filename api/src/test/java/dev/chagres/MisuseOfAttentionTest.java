package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.SavedAttention;
import dev.chagres.attention.Sequences;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Gradients and records of attention that do not belong together are refused, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseOfAttentionTest extends AttentionMisuse {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

    @Test
    void gradientsThatShareMemory() {
        Sequences sequences = Sequences.packed(CuSeqlens.of(scope, 0, 8));
        Tensor qkv = zeros(scope, 8, 3 * WIDTH);
        SavedAttention packed = attention.forwardPacked(qkv, sequences, scope);
        String text = ": expected memory of its own, got some of ";
        String reason = "'s; it is written to while that is read or written";
        assertThrown(
                ARGUMENT,
                "dqkv" + text + "the query" + reason,
                () -> attention.backwardPacked(packed.output(), packed, qkv, scope));
        Tensor q = scope.tensor(DType.BFLOAT16, 8, HEADS, HEAD_DIM);
        q.zero(stream);
        SavedAttention saved = attention.forward(q, q, q, sequences, scope);
        Tensor dO = scope.like(q);
        Tensor dq = scope.like(q);
        Tensor dk = scope.like(q);
        assertThrown(ARGUMENT, "dq" + text + "dk" + reason, () -> attention.backward(dO, saved, dq, dq, dk, scope));
        assertThrown(ARGUMENT, "dk" + text + "dv" + reason, () -> attention.backward(dO, saved, dq, dk, dk, scope));
        assertThrown(
                ARGUMENT,
                "dq" + text + "dO" + reason,
                () -> attention.backward(dq, saved, dq, dk, scope.like(q), scope));
        assertThrown(
                ARGUMENT, "dv" + text + "the query" + reason, () -> attention.backward(dO, saved, dq, dk, q, scope));
        assertThrown(
                ARGUMENT,
                "saved: expected what forward returned, got what forwardPacked returned; use backwardPacked",
                () -> attention.backward(packed.output(), packed, dq, dk, scope.like(q), scope));
        assertThrown(
                ARGUMENT,
                "saved: expected what forwardPacked returned, got what forward returned; use backward",
                () -> attention.backwardPacked(dO, saved, scope.like(qkv), scope));
    }

    @Test
    void aTypeThatNoKernelTakes() {
        Sequences sequences = Sequences.packed(CuSeqlens.of(scope, 0, 8));
        Tensor qkv = scope.tensor(DType.INT32, 8, 3 * WIDTH);
        assertThrown(
                ARGUMENT,
                "qkv: attention takes FLOAT32, BFLOAT16 or FLOAT16, got INT32[8, 96]",
                () -> attention.forwardPacked(qkv, sequences, scope));
    }

    @Test
    void recordsOfAnotherAttentionOrRepetition() {
        SavedAttention saved = packed(scope, 0, 8);
        Tensor dO = zeros(scope, 8, WIDTH);
        Tensor dqkv = zeros(scope, 8, 3 * WIDTH);
        assertThrown(
                ARGUMENT,
                "saved: expected what forward of this attention returned, got what another one's returned",
                () -> attention().backwardPacked(dO, saved, dqkv, scope));
        attention.backwardPacked(dO, saved, dqkv, scope);
        attention.backwardPacked(dO, saved, dqkv, scope);
        scope.restart();
        assertThrown(
                STATE,
                "tensor BFLOAT16[8, 32] of scope of device 0 is closed: the scope was restarted since",
                () -> attention.backwardPacked(dO, saved, dqkv, scope));
        for (int i = 0; i < 3; i++) {
            scope.tensor(DType.BFLOAT16, 8, WIDTH);
        }
        SavedAttention other = packed(device.openScope(), 0, 8);
        assertThrows(STATE, () -> attention.backwardPacked(other.output(), saved, other.output(), scope));
    }

    @Test
    void moreAnglesThanAnArrayHolds() {
        assertThrown(
                ARGUMENT,
                "positions, headDim: expected a product of at most 2147483639 angles, got 1073741824 and 4",
                () -> RotaryEmbedding.of(scope, 1 << 30, 4));
    }

    @Test
    void viewsThatBeginOffSixteenBytes() {
        Sequences sequences = Sequences.packed(scope, 3, 5);
        Tensor memory = zeros(scope, 9, WIDTH);
        Tensor q = scope.view(memory, 0, 8, HEADS, HEAD_DIM);
        Tensor off = scope.view(memory, 1, 8, HEADS, HEAD_DIM);
        String rest = ": expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a"
                + " view that does not; copy it into a tensor";
        assertThrown(ARGUMENT, "q" + rest, () -> attention.forward(off, q, q, sequences, scope));
        assertThrown(ARGUMENT, "v" + rest, () -> attention.forward(q, q, off, sequences, scope));
        SavedAttention saved = attention.forward(q, q, q, sequences, scope);
        Tensor more = zeros(scope, 9, WIDTH);
        Tensor dq = scope.view(more, 1, 8, HEADS, HEAD_DIM);
        Tensor dk = scope.like(q);
        Tensor dv = scope.like(q);
        Tensor dO = scope.like(q);
        assertThrown(ARGUMENT, "dq" + rest, () -> attention.backward(dO, saved, dq, dk, dv, scope));
    }
}
