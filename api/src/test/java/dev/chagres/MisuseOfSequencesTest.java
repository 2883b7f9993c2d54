package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.concurrent.CompletableFuture;
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

    /** A kernel would read behind the tokens. */
    @Test
    void lengthsThatOutgrowTheirPlaces() {
        Sequences gaps = Sequences.packed(scope, new int[] {4, 2}, new int[] {6, 2});
        gaps.check();
        try (HostBuffer host = HostBuffer.pageable(device, 12)) {
            MemorySegment offsets = host.segment();
            offsets.copyFrom(MemorySegment.ofArray(new int[] {0, 4, 10}));
            gaps.cuSeqlens().set(scope, offsets, 2);
            assertThrown(
                    STATE,
                    "sequences: the lengths were set again, and that of sequence 1 is 6 tokens, more than its place of 2;"
                            + " make this object again",
                    gaps::check);
            gaps.cuSeqlens().set(scope, offsets, 1);
            assertThrown(
                    STATE,
                    "sequences: the lengths were set again, of 1 sequences, but there are places for 2; make this object"
                            + " again",
                    gaps::check);
            offsets.copyFrom(MemorySegment.ofArray(new int[] {0, 6, 7}));
            gaps.cuSeqlens().set(scope, offsets, 2);
            gaps.check();
        }
    }

    @Test
    void offsetsInTooLittleMemory() {
        try (HostBuffer host = HostBuffer.pageable(device, 12)) {
            host.segment().fill((byte) 0);
            assertThrown(
                    ARGUMENT,
                    "source: expected 16 bytes for 3 sequences, got 12",
                    () -> new CuSeqlens().set(scope, host.segment(), 3));
            assertThrown(
                    ARGUMENT,
                    "source: expected 8589934592 bytes for 2147483647 sequences, got 12",
                    () -> new CuSeqlens().set(scope, host.segment(), Integer.MAX_VALUE));
            assertThrown(
                    ARGUMENT,
                    "offsets: expected at least the offset 0, got none",
                    () -> new CuSeqlens().set(scope, host.segment(), -1));
            host.segment().setAtIndex(ValueLayout.JAVA_INT, 1, 2);
            host.segment().setAtIndex(ValueLayout.JAVA_INT, 2, 5);
            CuSeqlens offsets = new CuSeqlens();
            assertThrown(STATE, "the CuSeqlens has no offsets yet: call set(scope, source, count)", offsets::offsets);
            offsets.set(scope, host.segment(), 2);
            assertEquals(3, offsets.longest());
            assertEquals(5, offsets.tokens());
        }
    }

    @Test
    void offsetsThatEndOffTheTokens() {
        Sequences nine = Sequences.packed(CuSeqlens.of(scope, 0, 4, 9));
        Tensor qkv = zeros(scope, 8, 3 * WIDTH);
        pass.begin(nine);
        assertThrown(
                ARGUMENT,
                "qkv: expected 9 tokens as the sequences say (THD, 2 sequences), got 8 in Tensor BFLOAT16[8, 96]",
                () -> attention.forwardPacked(qkv, pass));
        Tensor q = scope.tensor(DType.BFLOAT16, 8, HEADS, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "q: expected 2 heads of 16 over THD of 2 sequences, 9 tokens, got BFLOAT16[8, 2, 16]",
                () -> attention.forward(q, q, q, pass));
        RotaryEmbedding rotary = RotaryEmbedding.of(scope, 8, HEAD_DIM);
        assertThrown(
                ARGUMENT,
                "x: expected [9, h, d] with head dimension 16 over THD of 2 sequences, 9 tokens, got BFLOAT16[8, 2, 16]",
                () -> rotary.forward(q, scope.like(q), nine, stream));
        Sequences none = Sequences.packed(CuSeqlens.of(scope, 0));
        pass.begin(none);
        assertThrown(
                ARGUMENT,
                "sequences: expected at least one token, got THD of 0 sequences, 0 tokens; leave an empty batch out",
                () -> attention.forwardPacked(zeros(scope, 0, 3 * WIDTH), pass));
        rotary.rotatePacked(zeros(scope, 0, 3 * WIDTH), none, stream);
        Tensor nothing = scope.tensor(DType.BFLOAT16, 0, HEADS, HEAD_DIM);
        rotary.forward(nothing, scope.like(nothing), none, stream);
        rotary.backward(nothing, scope.like(nothing), none, stream);
        Sequences empty = Sequences.packed(CuSeqlens.of(scope, 0, 0, 0));
        pass.begin(empty);
        assertThrown(
                ARGUMENT,
                "sequences: expected at least one token, got THD of 2 sequences, 0 tokens; leave an empty batch out",
                () -> attention.forwardPacked(zeros(scope, 0, 3 * WIDTH), pass));
    }

    @Test
    void offsetsThatWereCheckedCannotBeChanged() {
        CuSeqlens offsets = CuSeqlens.of(scope, 0, 4, 8);
        Tensor view = scope.view(offsets.offsets(), 1, 1);
        String text =
                "tensor: expected one whose elements may change, got the offsets of a CuSeqlens or the angles of a"
                        + " RotaryEmbedding, which are trusted once made; make another one";
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
        String lost =
                "sequences: the scope that holds the offsets of the CuSeqlens was restarted since they were set, and"
                        + " may have handed out their memory for something else; set them again";
        try (Pass fresh = Pass.training(device).begin()) {
            Tensor qkv = zeros(fresh.scope(), 8, 3 * WIDTH);
            assertThrown(STATE, lost, () -> fresh.sequences(sequences));
            assertThrown(STATE, lost, () -> rotary.rotatePacked(qkv, sequences, stream));
            Sequences good = Sequences.packed(CuSeqlens.of(fresh.scope(), 0, 8));
            assertThrown(
                    STATE,
                    "rotary embedding: its scope was restarted since it was made, and may have handed out its memory for"
                            + " something else; make it in a scope that is not restarted",
                    () -> rotary.rotatePacked(qkv, good, stream));
            assertArrayEquals(new float[8 * 3 * WIDTH], qkv.toFloats(stream));
        }
    }

    /** The lengths are restarted when the pass has them already. */
    @Test
    void offsetsThatAreLostUnderAPass() {
        try (Scope lengths = device.openScope()) {
            for (Sequences sequences : List.of(
                    Sequences.packed(lengths, 4, 4),
                    Sequences.dense(lengths, QkvFormat.BSHD, 2, 4),
                    Sequences.padded(QkvFormat.SBHD, CuSeqlens.ofLengths(lengths, 4, 3), 4))) {
                pass.begin(sequences);
            }
            Sequences last = pass.sequences();
            Tensor qkv = zeros(scope, 8, 3 * WIDTH);
            attention.forwardPacked(qkv, pass);
            lengths.restart();
            String lost =
                    "sequences: the scope that holds the offsets of the CuSeqlens was restarted since they were set,"
                            + " and may have handed out their memory for something else; set them again";
            assertThrown(STATE, lost, () -> attention.forwardPacked(qkv, pass));
            for (int i = 0; i < 3; i++) {
                lengths.tensor(DType.INT32, 3);
            }
            assertThrown(STATE, lost, () -> attention.forwardPacked(qkv, pass));
            assertThrown(STATE, lost, () -> pass.begin(last));
        }
    }

    @Test
    void lengthsThatWereSetAgain() {
        try (HostBuffer host = HostBuffer.pageable(device, 12)) {
            host.segment().copyFrom(MemorySegment.ofArray(new int[] {0, 4, 7}));
            CuSeqlens lengths = new CuSeqlens();
            lengths.set(scope, host.segment(), 2);
            Sequences packed = Sequences.packed(lengths);
            Sequences padded = Sequences.padded(QkvFormat.BSHD, lengths, 4);
            Sequences both = packed.withKeys(Sequences.packed(scope, 1, 2));
            Sequences keys = Sequences.dense(scope, QkvFormat.BSHD, 2, 9).withKeys(padded);
            pass.begin(padded);
            Tensor qkv = zeros(scope, 8, 3 * WIDTH);
            attention.forwardPacked(qkv, pass);
            host.segment().copyFrom(MemorySegment.ofArray(new int[] {0, 5, 8}));
            lengths.set(scope, host.segment(), 2);
            String again =
                    "sequences: the lengths were set again since this BSHD object was made from them; make it again";
            assertThrown(STATE, again, () -> pass.begin(padded));
            assertThrown(STATE, again, () -> pass.sequences(keys));
            pass.begin(packed);
            assertEquals(8, pass.sequences().tokens(), "packed ones follow their lengths");
            attention.forwardPacked(qkv, pass);
            pass.sequences(both);
            assertEquals(3, pass.sequences().keys().tokens());
        }
    }

    @Test
    void lengthsThatWereSetAgainUnderAPass() {
        try (HostBuffer host = HostBuffer.pageable(device, 8)) {
            host.segment().copyFrom(MemorySegment.ofArray(new int[] {0, 8}));
            CuSeqlens lengths = new CuSeqlens();
            lengths.set(scope, host.segment(), 1);
            pass.begin(Sequences.padded(QkvFormat.SBHD, lengths, 8));
            lengths.set(scope, host.segment(), 1);
            assertThrown(
                    STATE,
                    "sequences: the lengths were set again since this SBHD object was made from them; make it again",
                    () -> attention.forwardPacked(zeros(scope, 8, 3 * WIDTH), pass));
        }
    }

    private static MemorySegment offsets(int... values) {
        return Arena.ofAuto().allocateFrom(ValueLayout.JAVA_INT, values);
    }

    @Test
    void offsetsAtAFixedPlace() {
        CuSeqlens fixed = CuSeqlens.fixed(scope, 2, 10, 16);
        assertThrown(STATE, "the CuSeqlens has no offsets yet: call set(source)", fixed::offsets);
        fixed.set(offsets(0, 8, 16));
        String told = ", as CuSeqlens.fixed was told, got ";
        assertThrown(
                ARGUMENT,
                "source: expected sequences of at most 10 tokens" + told + "one of 11",
                () -> fixed.set(offsets(0, 5, 16)));
        String padding = "; fill up with sequences of padding";
        assertThrown(
                ARGUMENT,
                "source: expected 16 tokens in all" + told + "17" + padding,
                () -> fixed.set(offsets(0, 8, 17)));
        assertThrown(
                ARGUMENT,
                "source: expected 16 tokens in all" + told + "15" + padding,
                () -> fixed.set(offsets(0, 8, 15)));
        assertThrown(
                ARGUMENT,
                "offsets: expected not to decrease, got 16 after 2000000000 at index 2",
                () -> fixed.set(offsets(0, 2_000_000_000, 16)));
        assertThrown(ARGUMENT, "source: expected 12 bytes for 2 sequences, got 8", () -> fixed.set(offsets(0, 16)));
        assertThrown(
                STATE,
                "the CuSeqlens has a fixed place, which graphs may read: call set(source)",
                () -> fixed.set(scope, offsets(0, 8, 16), 2));
        assertArrayEquals(new int[] {0, 8, 16}, fixed.offsets().toInts(device.stream()), "refused ones change nothing");
        assertThrown(
                ARGUMENT,
                "tensor: expected one whose elements may change, got the offsets of a CuSeqlens or the angles of a"
                        + " RotaryEmbedding, which are trusted once made; make another one",
                () -> scope.view(fixed.offsets(), 0, 3).set(device.stream(), 0, 100, 200));
        fixed.set(offsets(0, 6, 16, 99)); // Longer sources are read as far as needed.
        assertEquals(10, fixed.longest());
        assertEquals(16, fixed.tokens());
        assertThrown(
                STATE,
                "the CuSeqlens has no fixed place: make it with CuSeqlens.fixed, or call set(scope, source, count)",
                () -> CuSeqlens.of(scope, 0, 8).set(offsets(0, 8)));
    }

    @Test
    void boundsOfAFixedPlace() {
        String numbers = "sequences, longest, tokens: expected numbers from 0 to 2147483646, got ";
        assertThrown(ARGUMENT, numbers + "-1, 1 and 1", () -> CuSeqlens.fixed(scope, -1, 1, 1));
        assertThrown(ARGUMENT, numbers + "1, -1 and 1", () -> CuSeqlens.fixed(scope, 1, -1, 1));
        assertThrown(ARGUMENT, numbers + "1, 1 and -1", () -> CuSeqlens.fixed(scope, 1, 1, -1));
        assertThrown(ARGUMENT, numbers + "2147483647, 1 and 1", () -> CuSeqlens.fixed(scope, Integer.MAX_VALUE, 1, 1));
        assertThrown(
                ARGUMENT,
                "tokens: expected at most 20, those of 2 sequences of 10, got 21",
                () -> CuSeqlens.fixed(scope, 2, 10, 21));
        assertThrown(
                NullPointerException.class, "scope: expected a value, got null", () -> CuSeqlens.fixed(null, 1, 1, 1));
    }

    @Test
    void offsetsInMemoryOfManyKinds() {
        MemorySegment bytes = Arena.ofAuto().allocate(13).asSlice(1);
        bytes.copyFrom(MemorySegment.ofArray(new int[] {0, 3, 8}));
        CuSeqlens lengths = new CuSeqlens();
        lengths.set(scope, bytes, 2);
        assertArrayEquals(new int[] {0, 3, 8}, lengths.offsets().toInts(device.stream()), "at an odd address");
        assertThrown(
                ARGUMENT,
                "source: expected native memory, which the device can be sent, got a segment of the Java heap; take it from"
                        + " an Arena or a HostBuffer, or call set and toFloats with an array",
                () -> lengths.set(scope, MemorySegment.ofArray(new byte[12]), 2));
        Arena arena = Arena.ofConfined();
        MemorySegment closed = arena.allocate(12);
        arena.close();
        String open = "source: expected memory that is open to thread \""
                + Thread.currentThread().getName() + "\", got a segment ";
        assertThrown(STATE, open + "whose arena is closed", () -> lengths.set(scope, closed, 2));
        MemorySegment theirs = CompletableFuture.supplyAsync(
                        () -> Arena.ofConfined().allocate(12))
                .join();
        assertThrown(STATE, open + "of another thread's arena", () -> lengths.set(scope, theirs, 2));
        assertThrown(
                NullPointerException.class, "source: expected a value, got null", () -> lengths.set(scope, null, 2));
        assertEquals(8, lengths.tokens(), "refused ones change nothing");
    }

    @Test
    void keysOfOtherSequences() {
        Sequences two = Sequences.packed(scope, 3, 5);
        assertThrown(
                ARGUMENT,
                "keySequences: expected 2 sequences in THD, got 3 in THD",
                () -> two.withKeys(Sequences.packed(scope, 1, 1, 1)));
        assertThrown(
                ARGUMENT,
                "keySequences: expected 2 sequences in THD, got 2 in BSHD",
                () -> two.withKeys(Sequences.dense(scope, QkvFormat.BSHD, 2, 4)));
        assertThrown(NullPointerException.class, "keySequences: expected a value, got null", () -> two.withKeys(null));
        assertThrown(NullPointerException.class, "sequences: expected a value, got null", () -> pass.sequences(null));
    }

    @Test
    void denseAndPaddedBatches() {
        for (int[] size : new int[][] {{0, 4}, {4, 0}, {-1, 4}}) {
            assertThrown(
                    ARGUMENT,
                    "batch, length: expected at least 1 each, got " + size[0] + " and " + size[1],
                    () -> Sequences.dense(scope, QkvFormat.BSHD, size[0], size[1]));
        }
        assertThrown(
                ARGUMENT,
                "format: expected BSHD or SBHD, got THD; use Sequences.packed",
                () -> Sequences.dense(scope, QkvFormat.THD, 1, 1));
        assertThrown(
                ARGUMENT,
                "batch, length: expected at most 2147483647 tokens in all, got 65536 sequences of 32768",
                () -> Sequences.dense(scope, QkvFormat.BSHD, 1 << 16, 1 << 15));
        assertThrown(
                ARGUMENT,
                "batch, length: expected at most 2147483647 tokens in all, got 2147483647 sequences of 1",
                () -> Sequences.dense(scope, QkvFormat.BSHD, Integer.MAX_VALUE, 1));
        CuSeqlens five = CuSeqlens.ofLengths(scope, 5, 2);
        assertThrown(
                ARGUMENT,
                "length: expected at least the longest sequence, 5, got 4",
                () -> Sequences.padded(QkvFormat.BSHD, five, 4));
        Sequences swapped = Sequences.dense(scope, QkvFormat.BSHD, 2, 4);
        Tensor q = scope.tensor(DType.BFLOAT16, 4, 2, HEADS, HEAD_DIM);
        pass.begin(swapped);
        assertThrown(
                ARGUMENT,
                "q: expected 2 heads of 16 over BSHD of 2 sequences, 8 tokens, got BFLOAT16[4, 2, 2, 16]",
                () -> attention.forward(q, q, q, pass));
    }
}
