package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.te.ContextParallelChecks.TensorCells;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Merges the partial results of the steps of context-parallel attention over packed tokens (THD): outputs, log-sum-exps (LSE) and
 * gradients. A step has results for all tokens, or for one half of each sequence; results of halves are packed one after another.
 *
 * <p>Offsets are INT32 [B + 1], cumulative from 0, B from 1 to 12,287. Their contents are trusted: lengths must be even where a method
 * takes halves, none may exceed the columns of the LSE, and no sequence may end behind the tokens. Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_cp_thd_*} in TE's {@code fused_attn.h}.
 *
 * @param lse the LSE of all tokens, FLOAT32 [B, h, S] or [h, L]
 * @param cuSeqlens INT32 [B + 1]
 * @param layout which of both shapes the LSE has
 */
public record ContextParallelCorrection(Tensor lse, Tensor cuSeqlens, LseLayout layout) {
    private static final int VECTOR_BYTES = 16;

    /** The dimensions of an LSE, FLOAT32, h at most 65,535. */
    public enum LseLayout {
        /** [B, h, S]: padded, S columns per sequence. */
        PADDED,
        /** [h, L]: packed, one column per token, L at least T. */
        PACKED
    }

    /** The tokens of which a step has results. */
    public enum Extent {
        /** All of them. */
        WHOLE_SEQUENCES,
        /** The second half of each sequence. */
        SECOND_HALVES
    }

    /** What is done with the gradient of one half of each sequence. */
    public enum Update {
        /** Nothing. */
        NONE("none"),
        /** The step's gradient is added. */
        ADD("add"),
        /** The step's gradient replaces it. */
        COPY("copy"),
        /** It is set to 0. */
        ZERO("zero");

        private final MemorySegment text;

        Update(String text) {
            this.text = Arena.global().allocateFrom(text);
        }

        private boolean reads() {
            return this == ADD || this == COPY;
        }
    }

    /** Makes corrections by an LSE, which each call checks. */
    public ContextParallelCorrection {
        Checks.given("lse", lse, "cuSeqlens", cuSeqlens, "layout", layout);
    }

    /**
     * Enqueues {@code lse = log(exp(lse) + exp(lsePerStep))} for the second half of each sequence,
     * {@code nvte_cp_thd_second_half_lse_correction}. Where both are negative infinity the result is NaN.
     *
     * @param lsePerStep FLOAT32 [B, h, S / 2], or [h, at least L / 2]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the LSE shares memory
     */
    public void secondHalfLseCorrection(Tensor lsePerStep, Stream stream) {
        checkLse(stream);
        checkPart("lsePerStep", lsePerStep, 2, stream);
        Checks.written("lse", lse, "lsePerStep", lsePerStep, "cuSeqlens", cuSeqlens);
        if (hasNoHalves()) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_cp_thd_second_half_lse_correction(
                        lse.handle(),
                        cells.cell(0, lsePerStep),
                        cells.cell(1, cuSeqlens),
                        isPacked() ? 1 : 0,
                        stream.handle()),
                "te_cp_thd_second_half_lse_correction");
    }

    /**
     * Enqueues a copy of the LSE of the second half of each sequence, {@code nvte_cp_thd_read_second_half_lse}. Columns of
     * {@code halfLse} that belong to no token stay as they are.
     *
     * @param halfLse FLOAT32 [B, h, S / 2], or [h, at least L / 2]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or halfLse shares memory
     */
    public void readSecondHalfLse(Tensor halfLse, Stream stream) {
        checkLse(stream);
        checkPart("halfLse", halfLse, 2, stream);
        Checks.written("halfLse", halfLse, "lse", lse, "cuSeqlens", cuSeqlens);
        if (hasNoHalves()) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_cp_thd_read_second_half_lse(
                        cells.cell(0, lse),
                        cells.cell(1, cuSeqlens),
                        halfLse.handle(),
                        isPacked() ? 1 : 0,
                        (int) halfLse.size(halfLse.rank() - 1),
                        stream.handle()),
                "te_cp_thd_read_second_half_lse");
    }

    /**
     * Enqueues {@code out = out exp(oldLse - lse) + outPerStep exp(lsePerStep - lse)}, {@code nvte_cp_thd_out_correction}: adds a step's
     * output to those before it. An output of 0 counts as 0 whatever its factor is.
     *
     * @param out floating-point numbers [T, h, d], T at most 67,108,863, a head a multiple of 16 bytes
     * @param outPerStep like {@code out}, with T / 2 tokens if {@code extent} is SECOND_HALVES
     * @param oldLse like {@code lse}, without the step
     * @param lsePerStep like {@code lse}; if {@code extent} is SECOND_HALVES, with half as many columns (packed: at least half)
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public void outCorrection(
            Tensor out, Tensor outPerStep, Tensor oldLse, Tensor lsePerStep, Extent extent, Stream stream) {
        int divisor = Checks.given("extent", extent) == Extent.SECOND_HALVES ? 2 : 1;
        checkOut(out, stream);
        ContextParallelChecks.part("outPerStep", outPerStep, "out", out, divisor, stream);
        checkLse(stream);
        if (lse.size(lse.rank() - 2) != out.size(1) || (isPacked() && lse.size(1) < out.size(0))) {
            throw new IllegalArgumentException("lse: expected " + out.size(1) + " heads"
                    + (isPacked() ? " and at least " + out.size(0) + " columns" : "") + ", as out " + out.shape()
                    + " has, got " + Checks.describe(lse));
        }
        Checks.like(stream, "oldLse", oldLse, lse);
        checkPart("lsePerStep", lsePerStep, divisor, stream);
        Checks.written("out", out, "outPerStep", outPerStep, "lse", lse);
        Checks.written("out", out, "oldLse", oldLse, "lsePerStep", lsePerStep);
        Checks.apart("out", out, "cuSeqlens", cuSeqlens);
        if (outPerStep.count() == 0) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_cp_thd_out_correction(
                        out.handle(),
                        cells.cell(0, outPerStep),
                        cells.cell(1, oldLse),
                        cells.cell(2, lse),
                        cells.cell(3, lsePerStep),
                        cells.cell(4, cuSeqlens),
                        divisor - 1,
                        isPacked() ? 1 : 0,
                        stream.handle()),
                "te_cp_thd_out_correction");
    }

    /**
     * Enqueues an update of a gradient by a step's gradient, with its own {@link Update} for each half of the sequences, {@code
     * nvte_cp_thd_grad_correction}. TE has these pairs: ADD or COPY with NONE, COPY with ZERO, ADD with COPY. For ADD with COPY the step
     * has both halves, else only one.
     *
     * @param grad floating-point numbers [T, h, d] or [n, T, h, d], T even and at most 67,108,863, h d a multiple of 16 bytes
     * @param gradPerStep like {@code grad}, with T / 2 tokens unless the step has both halves
     * @param cuSeqlens INT32 [B + 1], lengths even
     * @throws IllegalArgumentException when shapes, types, devices or updates do not fit, or the gradient shares memory
     */
    public static void gradCorrection(
            Tensor grad, Tensor gradPerStep, Tensor cuSeqlens, Update firstHalf, Update secondHalf, Stream stream) {
        updates(Checks.given("firstHalf", firstHalf), Checks.given("secondHalf", secondHalf));
        int divisor = firstHalf.reads() && secondHalf.reads() ? 1 : 2;
        ContextParallelChecks.tokens("grad", grad, stream);
        ContextParallelChecks.offsets("cuSeqlens", cuSeqlens, stream);
        ContextParallelChecks.part("gradPerStep", gradPerStep, "grad", grad, divisor, stream);
        Checks.written("grad", grad, "gradPerStep", gradPerStep, "cuSeqlens", cuSeqlens);
        if (grad.count() == 0) {
            return;
        }
        TensorCells cells = TensorCells.of(stream);
        Status.te(
                TransformerEngine.te_cp_thd_grad_correction(
                        grad.handle(),
                        cells.cell(0, gradPerStep),
                        cells.cell(1, cuSeqlens),
                        firstHalf.text,
                        secondHalf.text,
                        stream.handle()),
                "te_cp_thd_grad_correction");
    }

    /** TE refuses two equal updates, and ZERO with anything but COPY. */
    private static void updates(Update first, Update second) {
        boolean clears = first == Update.ZERO || second == Update.ZERO;
        boolean copies = first == Update.COPY || second == Update.COPY;
        if (first == second || (clears && !copies)) {
            throw new IllegalArgumentException(
                    "secondHalf: expected another update than firstHalf's, and COPY beside ZERO," + " got " + first
                            + " and " + second);
        }
    }

    private boolean isPacked() {
        return layout == LseLayout.PACKED;
    }

    private void checkLse(Stream stream) {
        ContextParallelChecks.offsets("cuSeqlens", cuSeqlens, stream);
        Checks.typed(stream, "lse", lse, DType.FLOAT32);
        boolean fits = isPacked() ? lse.rank() == 2 : lse.rank() == 3 && lse.size(0) == cuSeqlens.count() - 1;
        if (!fits
                || lse.size(lse.rank() - 2) > ContextParallelChecks.MOST_PARTS
                || lse.count() > Integer.MAX_VALUE
                || lse.size(lse.rank() - 1) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("lse: expected FLOAT32"
                    + (isPacked() ? "[h, L]" : "[" + (cuSeqlens.count() - 1) + ", h, S]") + " with h at most "
                    + ContextParallelChecks.MOST_PARTS + " and at most " + Integer.MAX_VALUE
                    + " elements, which TE counts in 32 bits, got " + Checks.describe(lse));
        }
    }

    /** Checks an LSE that has the columns of the whole one over a divisor; packed, it may have more. */
    private void checkPart(String argument, Tensor part, int divisor, Stream stream) {
        Checks.typed(stream, argument, part, DType.FLOAT32);
        int last = lse.rank() - 1;
        long columns = lse.size(last) / divisor;
        boolean fits = part.rank() == lse.rank() && part.count() <= Integer.MAX_VALUE;
        for (int i = 0; fits && i < last; i++) {
            fits = part.size(i) == lse.size(i);
        }
        boolean wide = fits && part.size(last) <= Integer.MAX_VALUE;
        if (!wide || (isPacked() ? part.size(last) < columns : part.size(last) != columns)) {
            throw new IllegalArgumentException(argument + ": expected FLOAT32 like lse " + lse.shape() + " with "
                    + (isPacked() ? "at least " : "") + columns + " columns, got " + Checks.describe(part));
        }
    }

    /** Returns whether a launch for second halves would start no block. */
    private boolean hasNoHalves() {
        return lse.count() == 0 || lse.size(lse.rank() - 1) < 2;
    }

    /** Checks an output [T, h, d] whose heads are moved 16 bytes at once. */
    private static void checkOut(Tensor out, Stream stream) {
        ContextParallelChecks.rows("out", out, stream);
        if (out.rank() != 3 || out.size(2) * out.dtype().byteSize() % VECTOR_BYTES != 0) {
            throw new IllegalArgumentException("out: expected [T, h, d] with d a multiple of " + VECTOR_BYTES
                    + " bytes, got " + Checks.describe(out));
        }
    }
}
