package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.layer.Operand.Kept;
import dev.chagres.layer.Target.Producer;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * The input of a linear layer on its way from its producer to the layer's products: {@code begin → Target → finish}.
 *
 * <p>{@link #begin(Tensor, Pass)} says what the producer writes: the tensor, its copies in eight bits if their scale is known, or the tensor
 * and its amax. {@link #finish(Tensor, Operand, Scope, Pass)} makes what is missing: it casts, gathers, and keeps what backward reads. An
 * input for which nobody called begin is a plain tensor. Backward uses the precision of its forward, which the operand records, whatever the
 * pass's recipe is by then.
 *
 * <p>Of sequence-parallel ranks, forward reads all tokens; for backward a rank keeps its own, which are gathered again. With block scaling, a
 * block of a row lies within a token, a block of a column spans 128 tokens. If each rank has a multiple of 16 tokens, rowwise bytes are
 * gathered; if it has a multiple of 128, columnwise bytes, too. With other numbers of tokens, and with BLOCK_2D, the tensor itself is
 * gathered, and each rank casts all tokens.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedInput {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    /** The tensor of the target that was handed out last, until {@link #finish} takes it. */
    private final SavedTensor begun = new SavedTensor("the input that its producer casts");

    private @Nullable Target open;
    /** Can compute the input once more; null where none can. */
    private @Nullable NormLayer origin;

    private boolean alwaysRecomputes;

    QuantizedInput(LinearSites sites) {
        this.sites = sites;
        LinearSplit split = sites.split();
        copies = new QuantizedCopies(sites.input(), split.gathersInput() ? split.ranks() : TensorParallel.none());
    }

    /** Says that {@code norm} computes the input. */
    void comesFrom(NormLayer norm) {
        origin = norm;
    }

    /** Makes backward recompute the input in every pass. */
    void recompute() {
        alwaysRecomputes = true;
    }

    /**
     * Returns whether backward recomputes the input: forward is then called with one in temporary memory. A pass that calibrates would else keep
     * it in 16 bits, and need more memory than the steps after it, which keep eight.
     */
    boolean isRecomputed(Pass pass) {
        return origin != null && (alwaysRecomputes || pass.isCalibrating());
    }

    /** Returns the input itself in backward: what {@code operand} keeps, or recomputed. */
    Tensor whole(Operand operand, Pass pass) {
        NormLayer present = origin;
        if (present != null && operand.isLent()) {
            operand.keepWhole(present.recompute(pass));
        }
        return operand.whole();
    }

    /** Returns whether backward reads the whole input of {@code rows}, where forward of {@code pass} is followed by one. */
    boolean keepsWhole(long rows, Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return rows == 0 || present == null || kept(rows, present) == Kept.WHOLE;
    }

    /** Returns what a rank keeps of its {@code rows} tokens for a backward that reads the input. */
    private Kept kept(long rows, Quantizers present) {
        BackwardOverride override = present.recipe().backwardOverride();
        if (override == BackwardOverride.HIGH_PRECISION || isAdapted()) {
            return Kept.WHOLE;
        }
        boolean transposes = override == BackwardOverride.NONE;
        if (!copies.isGathered()) {
            return transposes ? Kept.COLUMNWISE : Kept.ROWWISE;
        }
        if (copies.hasOneScale(present)) {
            return Kept.ROWWISE;
        }
        return transposes && copies.hasScalesOfRows(present) && isWholeBlocks(rows) ? Kept.COLUMNWISE : Kept.WHOLE;
    }

    /** Returns whether adapters read the input itself. */
    private boolean isAdapted() {
        return sites.adapter() != null;
    }

    /** Returns whether no column's block has tokens of two ranks. */
    static boolean isWholeBlocks(long rows) {
        return rows % Scaling.BLOCK == 0;
    }

    /** Returns whether kernels read the scales of all tokens' blocks as those of each rank's stand beside each other. */
    static boolean isWholeSteps(long rows) {
        return rows % QuantizedCopies.STEP == 0;
    }

    /** Returns whether forward of {@code pass} lets the kernel that computes the input cast it. */
    boolean isCastByProducer(long rows, Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return rows > 0 && present != null && present.at(sites.input()).knowsScale();
    }

    /** Returns whether the scale of the input follows from its largest magnitude in forward of {@code pass}. */
    boolean scalesByAmax(Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return present != null && present.at(sites.input()).scalesByAmax();
    }

    /**
     * Says what a producer writes that can cast its result and compute its amax.
     *
     * @param x [T, in], for the result in the model's type; {@link #finish(Tensor, Operand, Scope, Pass)} of x follows
     */
    Target begin(Tensor x, Pass pass) {
        Quantizers present = x.size(0) > 0 ? sites.quantizers(pass) : null;
        Target target = quantized(x.size(0), present, keptIn(pass.isSaving() ? pass.kept() : null), pass);
        if (target == null) {
            target = copies.plain(x, true, present, pass);
        } else if (isAdapted() || copies.measures(present, pass)) {
            target.with(x);
        }
        begun.set(x);
        open = target;
        return target;
    }

    /**
     * Says what a producer writes of its result [rows, in], and allocates it; {@link #finish(Operand, Scope, Pass)} follows.
     *
     * @param producer what it can do
     * @param keptIn holds what backward reads; null where it reads nothing
     */
    Target begin(long rows, DType dtype, Producer producer, @Nullable Scope keptIn, Pass pass) {
        Scope wholeIn = keptIn != null && keepsWhole(rows, pass) ? keptIn : pass.temporary();
        Quantizers present = rows > 0 ? sites.quantizers(pass) : null;
        return begin(rows, dtype, producer, present, wholeIn, keptIn(keptIn), pass);
    }

    /** The same in backward, of an operand that forward did not keep; {@link #finishAgain} follows. */
    Target beginAgain(Operand operand, DType dtype, Producer producer, Pass pass) {
        Scope temporary = pass.temporary();
        return begin(operand.rows(), dtype, producer, operand.quantizers(), temporary, temporary, pass);
    }

    private Target begin(
            long rows,
            DType dtype,
            Producer producer,
            @Nullable Quantizers present,
            Scope wholeIn,
            @Nullable Scope keptIn,
            Pass pass) {
        long columns = sites.weight().shape().size(1);
        Target target = producer == Producer.FINDS_AMAX ? null : quantized(rows, present, keptIn, pass);
        if (target == null) {
            boolean findsAmax = producer != Producer.CASTS;
            target = copies.plain(wholeIn.tensor(dtype, rows, columns), findsAmax, present, pass);
        } else if (isAdapted()) {
            target.with(wholeIn.tensor(dtype, rows, columns));
        } else if (copies.measures(present, pass)) {
            target.with(pass.temporary().tensor(dtype, rows, columns));
        }
        open = target;
        return target;
    }

    /** Returns where to keep what the weight's gradient reads; null where there is none. */
    private @Nullable Scope keptIn(@Nullable Scope forBackward) {
        return sites.weight().isFrozen() ? null : forBackward;
    }

    /** Has the producer cast if the scale is known; else returns null. */
    private @Nullable Target quantized(long rows, @Nullable Quantizers present, @Nullable Scope keptIn, Pass pass) {
        boolean gathers = copies.isGathered();
        Scope rowsIn = gathers && keptIn != null ? keptIn : pass.temporary();
        return copies.quantized(rows, sites.weight().shape().size(1), present, rowsIn, gathers ? null : keptIn, pass);
    }

    /**
     * Makes {@code operand} of the input x [T, in], which its producer has written as {@link #begin(Tensor, Pass)} said, or in the model's
     * type.
     *
     * @param keptIn holds what backward reads; null where no backward comes
     */
    void finish(Tensor x, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Target target = begun.isOf(x) ? Checks.given("target", open) : copies.plain(x);
        begun.clear();
        finish(target, x, operand, keptIn, pass);
        if (isRecomputed(pass)) {
            operand.lend();
        }
    }

    /** Makes {@code operand} of what the target that was handed out last has received. */
    void finish(Operand operand, @Nullable Scope keptIn, Pass pass) {
        Target target = Checks.given("target", open);
        finish(target, target.tensorOrNull(), operand, keptIn, pass);
    }

    private void finish(Target target, @Nullable Tensor x, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Quantizers present = sites.covering(pass);
        operand.adapted.clear();
        if (x != null && (present == null || pass.isCalibrating() || x.size(0) == 0)) {
            operand.set(x);
            if (x.size(0) > 0) {
                sites.requireWhole(pass);
            }
            if (x.size(0) > 0 && present != null) {
                // Only for their amaxes: products read input and weight themselves.
                copies.cast(x, null, null, present, pass.temporary(), null, pass);
                sites.recordWeight(present, pass);
            }
            return;
        }
        Scope backwardIn = isAdapted() ? keptIn : keptIn(keptIn);
        make(target, x, operand, Checks.given("quantizers", present), true, backwardIn, pass);
        if (isAdapted()) {
            operand.keepWhole(Checks.given("x", x)); // forward reads it, too
        }
    }

    /**
     * Makes {@code operand} of an input that attention has cast.
     *
     * @param x [T, in], T a multiple of 16; without columnwise data, which is made here where backward reads it
     * @param present the recipe's state that x was cast by
     * @param keptIn holds what backward reads; null where no backward comes
     */
    void finish(QuantizedTensor x, Quantizers present, Operand operand, @Nullable Scope keptIn, Pass pass) {
        operand.set(null, x.rows(), x, present);
        Scope columnsIn = keptIn(keptIn);
        if (columnsIn != null) {
            x.allocateColumnwise(columnsIn);
            Transpose.transpose(
                    Checks.given("rowwise", x.rowwise()), Checks.given("columnwise", x.columnwise()), pass.stream());
            operand.keep(x, Kept.COLUMNWISE);
        }
    }

    /** Makes {@code operand} of the same input for forward's product again. */
    void castAgain(Tensor x, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        if (present == null) {
            operand.set(x);
        } else {
            make(copies.plain(x), x, operand, present, true, null, pass);
        }
    }

    /** Keeps of the same input what backward reads. */
    void keepAgain(Tensor x, Operand operand, Pass pass) {
        open = copies.plain(x);
        finishAgain(operand, pass);
    }

    /** Keeps what backward reads of what the target of {@link #beginAgain} has received. */
    void finishAgain(Operand operand, Pass pass) {
        Target target = Checks.given("target", open);
        Quantizers present = operand.quantizers();
        if (present == null) {
            operand.keepWhole(target.tensor());
        } else {
            make(target, target.tensorOrNull(), operand, present, false, pass.temporary(), pass);
        }
    }

    /**
     * Enqueues what {@code target} lacks.
     *
     * @param x null if its producer wrote copies alone
     * @param reads whether forward's product reads the operand next
     * @param keptIn holds what backward reads; null where it reads nothing
     */
    private void make(
            Target target,
            @Nullable Tensor x,
            Operand operand,
            Quantizers present,
            boolean reads,
            @Nullable Scope keptIn,
            Pass pass) {
        long rows = x == null ? copies.rowwise().rows() : x.size(0);
        Kept form = keptIn == null ? Kept.NOTHING : kept(rows, present);
        if (reads || form != Kept.WHOLE) {
            if (target instanceof Target.Quantized) {
                copies.measure(target.tensorOrNull(), present, pass);
            } else {
                cast(target, form, present, keptIn, pass);
            }
            QuantizedTensor own = form == Kept.COLUMNWISE ? copies.columnwise() : copies.rowwise();
            if (reads) {
                gather(rows, present, pass);
                operand.set(x, rows, copies.rowwise(), present);
            }
            if (form == Kept.ROWWISE || form == Kept.COLUMNWISE) {
                operand.keep(own, form);
            }
        }
        if (form == Kept.WHOLE) {
            operand.keepWhole(Checks.given("x", x));
        }
    }

    /** Enqueues the cast of this rank's tokens, or of all tokens where copies cannot be gathered. */
    private void cast(Target target, Kept form, Quantizers present, @Nullable Scope keptIn, Pass pass) {
        Tensor x = target.tensor();
        Scope rowsIn = form == Kept.ROWWISE && keptIn != null ? keptIn : pass.temporary();
        if (copies.isGathered() && copies.hasOneScale(present)) {
            copies.castOwn(x, target.amax(), present, rowsIn, pass);
            return;
        }
        Tensor read = copies.isGathered() && !gathersRows(x.size(0), present)
                ? sites.split().gatheredInput(x, pass)
                : x;
        copies.cast(read, target.amax(), null, present, rowsIn, form == Kept.COLUMNWISE ? keptIn : null, pass);
    }

    /** Enqueues the gather of what forward reads, if ranks have cast their own tokens. */
    private void gather(long rows, Quantizers present, Pass pass) {
        if (copies.isGathered() && copies.hasOneScale(present)) {
            copies.gather(copies.rowwise(), present, null, pass);
        } else if (copies.isGathered() && gathersRows(rows, present)) {
            copies.gatherBlockRows(copies.rowwise(), present, pass);
        }
    }

    private boolean gathersRows(long rows, Quantizers present) {
        return copies.hasScalesOfRows(present) && isWholeSteps(rows);
    }

    /**
     * Returns the copy that the weight's gradient is computed of, or that is dequantized for it: what was kept, or all tokens, gathered now.
     */
    QuantizedTensor kept(Operand operand, Pass pass) {
        Scope temporary = pass.temporary();
        if (!copies.isGathered()) {
            return operand.kept(temporary);
        }
        Quantizers present = Checks.given("quantizers", operand.quantizers());
        boolean transposes = present.recipe().backwardOverride() == BackwardOverride.NONE;
        Scope columnsIn = transposes ? temporary : null;
        switch (kept(operand.rows(), present)) {
            case ROWWISE -> copies.gather(operand.kept(temporary), present, columnsIn, pass);
            case COLUMNWISE -> {
                return copies.blockColumns(operand.kept(temporary), present, pass);
            }
            default -> {
                Tensor all = sites.split().gatheredInput(whole(operand, pass), pass);
                copies.cast(all, null, null, present, temporary, columnsIn, pass);
            }
        }
        return transposes ? copies.columnwise() : copies.rowwise();
    }
}
