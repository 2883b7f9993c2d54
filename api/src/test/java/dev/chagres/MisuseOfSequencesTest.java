package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Sequences: offsets that kernels would trust are refused, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseOfSequencesTest extends AttentionMisuse {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

    @Test
    void offsetsThatAreNone() {
        assertThrown(ARGUMENT, "offsets: expected at least the offset 0, got none", () -> CuSeqlens.of(scope));
        assertThrown(ARGUMENT, "offsets: expected to start at 0, got 1", () -> CuSeqlens.of(scope, 1, 2));
        assertThrown(ARGUMENT, "offsets: expected to start at 0, got -1", () -> CuSeqlens.of(scope, -1));
        assertThrown(
                ARGUMENT,
                "offsets: expected not to decrease, got 2 after 3 at index 2",
                () -> CuSeqlens.of(scope, 0, 3, 2));
        assertThrown(
                ARGUMENT,
                "offsets: expected not to decrease, got -2147483648 after 2147483647 at index 2",
                () -> CuSeqlens.of(scope, 0, Integer.MAX_VALUE, Integer.MIN_VALUE));
        assertThrown(ARGUMENT, "lengths: expected none negative, got -4 at 1", () -> CuSeqlens.ofLengths(scope, 3, -4));
        assertThrown(
                ARGUMENT,
                "lengths: expected at most 2147483647 tokens in all, got more at 1; make the batch smaller",
                () -> CuSeqlens.ofLengths(scope, Integer.MAX_VALUE, 1));
        assertThrows(NullPointerException.class, () -> CuSeqlens.of(scope, (int[]) null));
        assertEquals(0, CuSeqlens.ofLengths(scope).sequences());
    }

    @Test
    void offsetsInTooLittleMemory() {
        try (HostBuffer host = HostBuffer.pageable(device, 12)) {
            host.segment().fill((byte) 0);
            assertThrown(
                    ARGUMENT,
                    "source: expected 16 bytes for 3 sequences, got 12",
                    () -> CuSeqlens.copyOf(scope, host.segment(), 3));
            assertThrown(
                    ARGUMENT,
                    "source: expected 8589934592 bytes for 2147483647 sequences, got 12",
                    () -> CuSeqlens.copyOf(scope, host.segment(), Integer.MAX_VALUE));
            assertThrown(
                    ARGUMENT,
                    "offsets: expected at least the offset 0, got none",
                    () -> CuSeqlens.copyOf(scope, host.segment(), -1));
            host.segment().setAtIndex(ValueLayout.JAVA_INT, 1, 2);
            host.segment().setAtIndex(ValueLayout.JAVA_INT, 2, 5);
            assertEquals(3, CuSeqlens.copyOf(scope, host.segment(), 2).longest());
        }
    }

    @Test
    void offsetsThatEndOffTheTokens() {
        Sequences nine = Sequences.packed(CuSeqlens.of(scope, 0, 4, 9));
        Tensor qkv = zeros(scope, 8, 3 * WIDTH);
        assertThrown(
                ARGUMENT,
                "qkv: expected 9 tokens as the sequences say (THD, 2 sequences), got 8 in Tensor BFLOAT16[8, 96]",
                () -> attention.forwardPacked(qkv, nine, scope));
        Tensor q = scope.tensor(DType.BFLOAT16, 8, HEADS, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "q: expected 2 heads of 16 over THD of 2 sequences, 9 tokens, got BFLOAT16[8, 2, 16]",
                () -> attention.forward(q, q, q, nine, scope));
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "x: expected [9, h, d] with head dimension 16 over THD of 2 sequences, 9 tokens, got BFLOAT16[8, 2, 16]",
                () -> rotary.forward(q, nine, scope));
        Sequences none = Sequences.packed(CuSeqlens.of(scope, 0));
        assertThrown(
                ARGUMENT,
                "sequences: expected at least one token, got THD of 0 sequences, 0 tokens; leave an empty batch out",
                () -> attention.forwardPacked(zeros(scope, 0, 3 * WIDTH), none, scope));
        rotary.rotatePacked(zeros(scope, 0, 3 * WIDTH), none, scope);
        Sequences empty = Sequences.packed(CuSeqlens.of(scope, 0, 0, 0));
        assertThrown(
                ARGUMENT,
                "sequences: expected at least one token, got THD of 2 sequences, 0 tokens; leave an empty batch out",
                () -> attention.forwardPacked(zeros(scope, 0, 3 * WIDTH), empty, scope));
    }

    @Test
    void offsetsThatWereCheckedCannotBeChanged() {
        CuSeqlens offsets = CuSeqlens.of(scope, 0, 4, 8);
        Tensor view = scope.view(offsets.offsets(), 1, 1);
        String text =
                "tensor: expected one whose elements may change, got the offsets of a CuSeqlens, which are checked"
                        + " only when it is made; make another CuSeqlens";
        assertThrown(ARGUMENT, text, () -> offsets.offsets().set(stream, 0, 4, 1 << 30));
        assertThrown(ARGUMENT, text, () -> offsets.offsets().zero(stream));
        assertThrown(ARGUMENT, text, () -> view.set(stream, 1 << 30));
        Tensor other = scope.tensor(DType.INT32, 3);
        assertThrown(ARGUMENT, text, () -> offsets.offsets().copyFrom(stream, other));
        assertArrayEquals(new int[] {0, 4, 8}, offsets.offsets().toInts(stream));
    }

    @Test
    void offsetsAndAnglesOfTheRepetitionBefore() {
        Sequences sequences = Sequences.packed(CuSeqlens.of(scope, 0, 4, 8));
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, HEAD_DIM);
        scope.restart();
        Tensor memory = scope.tensor(DType.INT32, 3);
        memory.set(stream, 1 << 30, -5, 1 << 29);
        Tensor angles = scope.tensor(DType.FLOAT32, 1);
        assertEquals(1, angles.count());
        try (Scope fresh = device.openScope()) {
            Tensor qkv = zeros(fresh, 8, 3 * WIDTH);
            assertThrown(
                    STATE,
                    "sequences: the CuSeqlens was made before the last restart of scope of device 0, which has handed out"
                            + " its memory for something else; make it again after restart()",
                    () -> attention.forwardPacked(qkv, sequences, fresh));
            assertThrows(STATE, () -> rotary.rotatePacked(qkv, sequences, fresh));
            assertThrows(STATE, () -> rotary.rotatePacked(qkv, Sequences.packed(CuSeqlens.of(fresh, 0, 8)), fresh));
            assertArrayEquals(new float[8 * 3 * WIDTH], qkv.toFloats(stream));
        }
    }

    @Test
    void denseAndPaddedBatches() {
        for (int[] size : new int[][] {{0, 4}, {4, 0}, {-1, 4}}) {
            assertThrown(
                    ARGUMENT,
                    "batch, length: expected at least 1 each, got " + size[0] + " and " + size[1],
                    () -> Sequences.dense(scope, Sequences.Format.BSHD, size[0], size[1]));
        }
        assertThrown(
                ARGUMENT,
                "format: expected BSHD or SBHD, got THD; use Sequences.packed",
                () -> Sequences.dense(scope, Sequences.Format.THD, 1, 1));
        assertThrown(
                ARGUMENT,
                "batch, length: expected at most 2147483647 tokens in all, got 65536 sequences of 32768",
                () -> Sequences.dense(scope, Sequences.Format.BSHD, 1 << 16, 1 << 15));
        assertThrown(
                ARGUMENT,
                "batch, length: expected at most 2147483647 tokens in all, got 2147483647 sequences of 1",
                () -> Sequences.dense(scope, Sequences.Format.BSHD, Integer.MAX_VALUE, 1));
        CuSeqlens five = CuSeqlens.ofLengths(scope, 5, 2);
        assertThrown(
                ARGUMENT,
                "length: expected at least the longest sequence, 5, got 4",
                () -> Sequences.padded(Sequences.Format.BSHD, five, 4));
        Sequences swapped = Sequences.dense(scope, Sequences.Format.BSHD, 2, 4);
        Tensor q = scope.tensor(DType.BFLOAT16, 4, 2, HEADS, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "q: expected 2 heads of 16 over BSHD of 2 sequences, 8 tokens, got BFLOAT16[4, 2, 2, 16]",
                () -> attention.forward(q, q, q, swapped, scope));
    }
}
