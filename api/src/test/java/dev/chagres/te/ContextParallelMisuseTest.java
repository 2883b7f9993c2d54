package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.ContextParallelCorrection.Extent;
import dev.chagres.te.ContextParallelCorrection.LseLayout;
import dev.chagres.te.ContextParallelCorrection.Update;
import dev.chagres.te.ContextParallelThd.Half;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;

/** The texts of what {@code ContextParallelThd} and {@code ContextParallelCorrection} refuse. */
@Tag("L0")
@Tag("L1")
class ContextParallelMisuseTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static Tensor floats(long... sizes) {
        return of(DType.FLOAT32, sizes);
    }

    private static void refused(String text, Executable call) {
        assertThrown(IllegalArgumentException.class, text, call);
    }

    private static void half(String text, Tensor tensor, Tensor lengths, Tensor half) {
        refused(text, () -> ContextParallelThd.readHalfTensor(tensor, lengths, half, Half.FIRST, open.stream()));
    }

    @Test
    void halves() {
        Tensor x = floats(8, 2, 4);
        Tensor lengths = open.ints(0, 8);
        String wanted =
                "tensor: expected [T, h, d] or [n, T, h, d] with n at most 65535, T even and at most 67108863, and"
                        + " h d a multiple of 16 bytes, got ";
        half(wanted + "FLOAT32[8, 4]", floats(8, 4), lengths, x);
        half(wanted + "FLOAT32[7, 2, 4]", floats(7, 2, 4), lengths, x);
        half(wanted + "FLOAT32[8, 1, 3]", floats(8, 1, 3), lengths, x);
        half(wanted + "FLOAT32[65536, 0, 1, 4]", floats(65_536, 0, 1, 4), lengths, x);
        half(wanted + "FLOAT32[134217728, 1, 0]", floats(134_217_728, 1, 0), lengths, x);
        half("half: expected FLOAT32 like tensor [8, 2, 4] with 4 tokens, got FLOAT32[8, 2, 4]", x, lengths, x);
        half(
                "half: expected FLOAT32 like tensor [8, 2, 4] with 4 tokens, got BFLOAT16[4, 2, 4]",
                x,
                lengths,
                of(DType.BFLOAT16, 4, 2, 4));
        half(
                "half: expected memory of its own, got some of tensor's; it is written to while that is read or written",
                x,
                lengths,
                open.scope().view(x, 0, 4, 2, 4));
        half(
                "tensor: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view"
                        + " that does not; copy it into a tensor",
                open.scope().view(floats(9, 2, 4), 1, 8, 2, 4),
                lengths,
                floats(4, 2, 4));
    }

    @Test
    void offsets() {
        Tensor x = floats(8, 2, 4);
        Tensor half = floats(4, 2, 4);
        String wanted = "cuSeqlens: expected INT32[B + 1] with B from 1 to 12287, got ";
        half(wanted + "INT32[1]", x, open.ints(0), half);
        half(wanted + "INT32[2, 1]", x, of(DType.INT32, 2, 1), half);
        half(wanted + "INT32[12289]", x, of(DType.INT32, 12_289), half);
        half("cuSeqlens: expected elements of INT32, got FLOAT32[2]", x, floats(2), half);
    }

    @Test
    void orders() {
        Tensor x = floats(8, 4);
        Tensor y = floats(8, 4);
        Tensor lengths = open.ints(0, 8);
        refused(
                "inp: expected [T, ...] with T at most 67108863 and a token a multiple of 16 bytes, got FLOAT32[8, 3]",
                () -> ContextParallelThd.sequenceOrderToCpRankOrder(
                        floats(8, 3), lengths, floats(8, 3), 2, open.stream()));
        refused(
                "inp: expected a multiple of 2 worldSize = 6 tokens, got FLOAT32[8, 4]",
                () -> ContextParallelThd.cpRankOrderToSequenceOrder(x, lengths, y, 3, open.stream()));
        refused(
                "worldSize: expected from 1 to 67108863, got 0",
                () -> ContextParallelThd.sequenceOrderToCpRankOrder(x, lengths, y, 0, open.stream()));
        refused(
                "output: expected INT32[T / worldSize], even and at most 33554431, got INT32[3]",
                () -> ContextParallelThd.getPartitionedIndices(lengths, of(DType.INT32, 3), 2, 0, open.stream()));
        refused(
                "rank: expected at least 0 and below 2, got 2",
                () -> ContextParallelThd.getPartitionedIndices(lengths, of(DType.INT32, 4), 2, 2, open.stream()));
        refused(
                "cuSeqlensPadded: expected INT32[B + 1] with B from 1 to 6143, got INT32[6145]",
                () -> ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(
                        x, of(DType.INT32, 6145), lengths, y, open.stream()));
        refused(
                "cuSeqlens: expected INT32[2], got INT32[3]",
                () -> ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(
                        x, lengths, open.ints(0, 4, 8), y, open.stream()));
        refused(
                "out: expected memory of its own, got some of inp's; it is written to while that is read or written",
                () -> ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(x, lengths, lengths, x, open.stream()));
    }

    @Test
    void lse() {
        Tensor lengths = open.ints(0, 8);
        Tensor lse = floats(2, 8);
        String more = " with h at most 65535 and at most 2147483647 elements, which TE counts in 32 bits, got ";
        refused(
                "lse: expected FLOAT32[h, L]" + more + "FLOAT32[1, 2, 8]",
                () -> new ContextParallelCorrection(floats(1, 2, 8), lengths, LseLayout.PACKED)
                        .secondHalfLseCorrection(lse, open.stream()));
        refused(
                "lse: expected FLOAT32[1, h, S]" + more + "FLOAT32[2, 2, 8]",
                () -> new ContextParallelCorrection(floats(2, 2, 8), lengths, LseLayout.PADDED)
                        .readSecondHalfLse(lse, open.stream()));
        refused(
                "lse: expected FLOAT32[h, L]" + more + "FLOAT32[65536, 8]",
                () -> new ContextParallelCorrection(floats(65_536, 8), lengths, LseLayout.PACKED)
                        .readSecondHalfLse(lse, open.stream()));
        refused(
                "lsePerStep: expected FLOAT32 like lse [2, 8] with at least 4 columns, got FLOAT32[2, 3]",
                () -> new ContextParallelCorrection(lse, lengths, LseLayout.PACKED)
                        .secondHalfLseCorrection(floats(2, 3), open.stream()));
        refused(
                "halfLse: expected FLOAT32 like lse [1, 2, 8] with 4 columns, got FLOAT32[1, 2, 5]",
                () -> new ContextParallelCorrection(floats(1, 2, 8), lengths, LseLayout.PADDED)
                        .readSecondHalfLse(floats(1, 2, 5), open.stream()));
    }

    private static void out(String text, Tensor out, Tensor step, Tensor lse, Tensor stepLse) {
        refused(
                text,
                () -> new ContextParallelCorrection(lse, open.ints(0, 8), LseLayout.PACKED)
                        .outCorrection(out, step, lse, stepLse, Extent.SECOND_HALVES, open.stream()));
    }

    @Test
    void outputs() {
        Tensor x = floats(8, 2, 4);
        Tensor step = floats(4, 2, 4);
        Tensor lse = floats(2, 8);
        Tensor stepLse = floats(2, 4);
        out(
                "out: expected [T, h, d] with d a multiple of 16 bytes, got FLOAT32[8, 4, 2]",
                floats(8, 4, 2),
                step,
                lse,
                stepLse);
        out(
                "out: expected [T, h, d] with d a multiple of 16 bytes, got FLOAT32[8, 8]",
                floats(8, 8),
                step,
                lse,
                stepLse);
        out("outPerStep: expected FLOAT32 like out [8, 2, 4] with 4 tokens, got FLOAT32[8, 2, 4]", x, x, lse, stepLse);
        out(
                "lse: expected 2 heads and at least 8 columns, as out [8, 2, 4] has, got FLOAT32[2, 7]",
                x,
                step,
                floats(2, 7),
                stepLse);
        out(
                "lsePerStep: expected FLOAT32 like lse [2, 8] with at least 4 columns, got FLOAT32[2, 2]",
                x,
                step,
                lse,
                floats(2, 2));
        out(
                "out: expected memory of its own, got some of outPerStep's; it is written to while that is read or written",
                x,
                open.scope().view(x, 0, 4, 2, 4),
                lse,
                stepLse);
    }

    @Test
    void gradients() {
        Tensor x = floats(8, 2, 4);
        Tensor step = floats(4, 2, 4);
        Tensor lengths = open.ints(0, 8);
        String wanted = "secondHalf: expected another update than firstHalf's, and COPY beside ZERO, got ";
        refused(
                wanted + "ADD and ADD",
                () -> ContextParallelCorrection.gradCorrection(
                        x, step, lengths, Update.ADD, Update.ADD, open.stream()));
        refused(
                wanted + "ZERO and NONE",
                () -> ContextParallelCorrection.gradCorrection(
                        x, step, lengths, Update.ZERO, Update.NONE, open.stream()));
        refused(
                "gradPerStep: expected FLOAT32 like grad [8, 2, 4] with 8 tokens, got FLOAT32[4, 2, 4]",
                () -> ContextParallelCorrection.gradCorrection(
                        x, step, lengths, Update.ADD, Update.COPY, open.stream()));
    }
}
