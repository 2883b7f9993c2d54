package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * Makes the operand of a linear layer's input: the tensor itself, or its copies in eight bits if the pass's recipe says so.
 *
 * <p>Backward uses the precision of its forward, which the operand records, whatever the pass's recipe is by then.
 *
 * <p>Threading: the device's thread.
 */
final class LinearInput {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    private final FusedCast fusedCast;
    /** Null if a rank has all tokens of the input. */
    private final @Nullable GatheredInput gathered;
    /** Recomputes the input in backward; null if forward saves what backward reads. */
    private @Nullable NormLayer origin;

    LinearInput(LinearSites sites) {
        this.sites = sites;
        copies = new QuantizedCopies(sites.input());
        fusedCast = new FusedCast(sites, copies);
        gathered = sites.split().gathersInput() ? new GatheredInput(sites, copies) : null;
    }

    /** Returns the object that makes the same operand if the kernel that computes the input casts it. */
    FusedCast fusedCast() {
        return fusedCast;
    }

    /** Makes backward recompute the input by {@code norm}: forward is then called with an input in temporary memory. */
    void recomputeBy(NormLayer norm) {
        origin = norm;
    }

    /** Returns the input itself in backward: {@code kept}, or recomputed. */
    Tensor whole(SavedTensor kept, Pass pass) {
        NormLayer present = origin;
        return present == null ? kept.get() : present.recompute(pass);
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
        return rows == 0
                || present == null
                || present.recipe().backwardOverride() == BackwardOverride.HIGH_PRECISION
                || (gathered != null && gathered.keepsWhole(rows, present));
    }

    /**
     * Makes {@code operand} of the input x [T, in].
     *
     * @param keptIn holds what backward needs; null where no backward comes
     */
    void prepare(Tensor x, Operand operand, @Nullable Scope keptIn, Pass pass) {
        fill(x, operand, keptIn, pass);
        if (origin != null) {
            operand.lend();
        }
    }

    private void fill(Tensor x, Operand operand, @Nullable Scope keptIn, Pass pass) {
        if (!fusedCast.isOffered(x)) {
            prepare(x, null, operand, keptIn, pass);
            return;
        }
        Tensor amax = fusedCast.takeOffer();
        if (amax != null) {
            prepare(x, amax, operand, keptIn, pass);
            return;
        }
        Quantizers present = Checks.given("quantizers", sites.covering(pass));
        measure(x, present, pass);
        if (gathered != null) {
            gathered.prepareCast(x, operand, sites.weight().isFrozen() ? null : keptIn, present, pass);
            return;
        }
        operand.set(x, copies.rowwise(), present);
        if (copies.hasColumnwise()) {
            operand.keepColumnwise(copies.columnwise());
        }
    }

    /**
     * Makes {@code operand} of the input x [T, in].
     *
     * @param amax the largest magnitude of x, if the kernel that computed x found it; null otherwise
     * @param keptIn holds what backward needs; null where no backward comes
     */
    void prepare(Tensor x, @Nullable Tensor amax, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Quantizers present = sites.covering(pass);
        if (x.size(0) == 0) {
            operand.set(x);
            return;
        }
        if (present == null || pass.isCalibrating()) {
            sites.requireWhole(pass);
        }
        if (present == null) {
            operand.set(x);
            return;
        }
        if (pass.isCalibrating()) {
            copies.cast(x, null, present, pass.temporary(), null, pass);
            // Only for its amax: products read the weight itself.
            sites.recordWeight(present, pass);
            operand.set(x);
            return;
        }
        BackwardOverride override = present.recipe().backwardOverride();
        boolean keeps = keptIn != null && !sites.weight().isFrozen();
        if (gathered != null) {
            gathered.prepare(x, amax, operand, keeps ? keptIn : null, present, pass);
            return;
        }
        boolean transposes = keeps && override == BackwardOverride.NONE;
        boolean dequantizes = keeps && override == BackwardOverride.DEQUANTIZED;
        Scope rowsIn = dequantizes ? Checks.given("keptIn", keptIn) : pass.temporary();
        copies.cast(x, amax, present, rowsIn, transposes ? keptIn : null, pass);
        operand.set(x, copies.rowwise(), present);
        if (transposes || dequantizes) {
            keepCopy(operand, override);
        } else if (keeps) {
            operand.keepWhole(x);
        }
    }

    /**
     * Makes {@code operand} of an input that was cast by the kernel that computed it.
     *
     * @param x [T, in], T a multiple of 16; without columnwise data, which is made here where backward needs it
     * @param present the recipe's state that x was cast by
     * @param keptIn holds what backward needs; null where no backward comes
     */
    void prepare(QuantizedTensor x, Quantizers present, Operand operand, @Nullable Scope keptIn, Pass pass) {
        operand.set(x.rows(), x, present);
        if (keptIn != null && !sites.weight().isFrozen()) {
            x.allocateColumnwise(keptIn);
            Transpose.transpose(
                    Checks.given("rowwise", x.rowwise()), Checks.given("columnwise", x.columnwise()), pass.stream());
            operand.keepColumnwise(x);
        }
    }

    private void keepCopy(Operand operand, BackwardOverride override) {
        if (override == BackwardOverride.NONE) {
            operand.keepColumnwise(copies.columnwise());
        } else {
            operand.keepRowwise(copies.rowwise());
        }
    }

    /** Makes {@code operand} of the same input for forward's product again, as {@link #prepare} did. */
    void castAgain(Tensor x, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        if (present == null) {
            operand.set(x);
        } else if (gathered != null) {
            gathered.prepare(x, null, operand, null, present, pass);
        } else {
            copies.cast(x, null, present, pass.temporary(), null, pass);
            operand.set(x, copies.rowwise(), present);
        }
    }

    /**
     * Makes {@code operand} of the same input again in backward, if {@link #prepare} did not keep it.
     *
     * @param amax the largest magnitude of x, if the kernel that computed x found it; null otherwise
     */
    void prepareAgain(Tensor x, @Nullable Tensor amax, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        BackwardOverride override = present == null
                ? BackwardOverride.HIGH_PRECISION
                : present.recipe().backwardOverride();
        if (present == null || override == BackwardOverride.HIGH_PRECISION) {
            operand.keepWhole(x);
            return;
        }
        Scope temporary = pass.temporary();
        if (gathered != null) {
            gathered.prepareAgain(x, amax, operand, present, pass);
        } else {
            copies.cast(x, amax, present, temporary, override == BackwardOverride.NONE ? temporary : null, pass);
            keepCopy(operand, override);
        }
    }

    /** Returns the columnwise copy that the weight's gradient is computed of: what was kept, or all tokens, gathered now. */
    QuantizedTensor columnwise(Operand operand, Pass pass) {
        if (gathered == null) {
            return operand.columnwise(pass.temporary());
        }
        return gathered.columnwise(wholeForGather(gathered, operand, pass), pass);
    }

    /** Returns the rowwise copy that backward dequantizes: what was kept, or all tokens, gathered now. */
    QuantizedTensor rowwise(Operand operand, Pass pass) {
        if (gathered == null) {
            return operand.keptRowwise(pass.temporary());
        }
        return gathered.rowwise(wholeForGather(gathered, operand, pass), pass);
    }

    /** Returns the operand, with the tensor itself if ranks gather that. */
    private Operand wholeForGather(GatheredInput gathering, Operand operand, Pass pass) {
        if (gathering.keepsWhole(operand.rows(), Checks.given("quantizers", operand.quantizers()))) {
            whole(operand, pass);
        }
        return operand;
    }

    /** Returns whether the next cast of the input is measured. */
    boolean measures(Pass pass) {
        Quantizers present = sites.quantizers(pass);
        return present != null && present.measures(sites.input(), pass.recording());
    }

    /** Enqueues the measurement of the input's latest cast by the kernel that computed x, if casts are measured. */
    void measure(Tensor x, Quantizers present, Pass pass) {
        if (present.measures(sites.input(), pass.recording())) {
            present.at(sites.input()).measure(x, copies.rowwise(), pass.stream());
        }
    }
}
