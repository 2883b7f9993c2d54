package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import org.jspecify.annotations.Nullable;

/**
 * The operand of an input [T, in] in eight bits in a sequence-parallel layer. Forward reads all tokens; for backward a rank keeps its own,
 * which are gathered again.
 *
 * <p>With block scaling, a block of a row lies within a token, a block of a column spans 128 tokens. If each rank has a multiple of 16
 * tokens, rowwise bytes are gathered; if it has a multiple of 128, columnwise bytes, too. With other numbers of tokens, and with BLOCK_2D,
 * the tensor itself is gathered, and each rank casts all tokens.
 *
 * <p>Threading: the device's thread.
 */
final class GatheredInput {
    private final LinearSites sites;
    private final QuantizedCopies copies;
    private final GatheredCopies gathering;

    /** {@code copies}: receives what products read. */
    GatheredInput(LinearSites sites, QuantizedCopies copies) {
        this.sites = sites;
        this.copies = copies;
        gathering = sites.split().gathering(sites.input(), copies);
    }

    /** Returns whether this rank keeps its {@code rows} tokens themselves for a backward that reads eight bits. */
    boolean keepsWhole(long rows, Quantizers present) {
        return !gathering.hasOneScale(present) && !keepsColumns(rows, present);
    }

    /** Returns whether a rank keeps its own blocks of columns. */
    private boolean keepsColumns(long rows, Quantizers present) {
        return gathering.hasScalesOfRows(present)
                && isWholeBlocks(rows)
                && present.recipe().backwardOverride() == BackwardOverride.NONE;
    }

    /** Returns whether no column's block has tokens of two ranks. */
    static boolean isWholeBlocks(long rows) {
        return rows % Scaling.BLOCK == 0;
    }

    /** Returns whether kernels read the scales of all tokens' blocks as those of each rank's stand beside each other. */
    static boolean isWholeSteps(long rows) {
        return rows % QuantizedCopies.STEP == 0;
    }

    /**
     * Makes {@code operand} of this rank's tokens.
     *
     * @param amax as for {@link GatheredCopies#castOwn}
     * @param keptIn holds what backward needs; null where it needs nothing
     */
    void prepare(
            Tensor x, @Nullable Tensor amax, Operand operand, @Nullable Scope keptIn, Quantizers present, Pass pass) {
        if (!gathering.hasOneScale(present)) {
            prepareBlocks(x, operand, keptIn, present, pass);
            return;
        }
        boolean keepsBytes = keptIn != null && present.recipe().backwardOverride() != BackwardOverride.HIGH_PRECISION;
        Scope rowsIn = keepsBytes ? Checks.given("keptIn", keptIn) : pass.temporary();
        QuantizedTensor own = gathering.castOwn(x, amax, present, rowsIn, pass);
        gathering.gather(own, present, null, pass);
        operand.set(x, copies.rowwise(), present);
        if (keepsBytes) {
            operand.keepRowwise(own);
        } else if (keptIn != null) {
            operand.keepWhole(x);
        }
    }

    private void prepareBlocks(Tensor x, Operand operand, @Nullable Scope keptIn, Quantizers present, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor columns = null;
        if (gathering.hasScalesOfRows(present) && isWholeSteps(x.size(0))) {
            boolean keepsColumns = keptIn != null && keepsColumns(x.size(0), present);
            copies.cast(x, null, present, temporary, keepsColumns ? keptIn : null, pass);
            columns = keepsColumns ? copies.columnwise() : null;
            gathering.gatherBlockRows(copies.rowwise(), present, pass);
        } else {
            copies.cast(sites.split().gatheredInput(x, pass), null, present, temporary, null, pass);
        }
        operand.set(x, copies.rowwise(), present);
        if (columns != null) {
            operand.keepColumnwise(columns);
        } else if (keptIn != null) {
            operand.keepWhole(x);
        }
    }

    /** Makes {@code operand} of rowwise data with one scale, filled by the kernel that computes x. */
    void prepareCast(Tensor x, Operand operand, @Nullable Scope keptIn, Quantizers present, Pass pass) {
        QuantizedTensor own = copies.rowwise();
        gathering.gather(own, present, null, pass);
        operand.set(x, copies.rowwise(), present);
        if (keptIn != null) {
            operand.keepRowwise(own);
        }
    }

    /** Makes {@code operand} again in backward for {@link #columnwise} or {@link #rowwise}. */
    void prepareAgain(Tensor x, @Nullable Tensor amax, Operand operand, Quantizers present, Pass pass) {
        Scope temporary = pass.temporary();
        if (gathering.hasOneScale(present)) {
            operand.keepRowwise(gathering.castOwn(x, amax, present, temporary, pass));
        } else if (keepsColumns(x.size(0), present)) {
            copies.cast(x, null, present, temporary, temporary, pass);
            operand.keepColumnwise(copies.columnwise());
        } else {
            operand.keepWhole(x);
        }
    }

    /** Returns the columnwise copy of all tokens, for the weight's gradient. */
    QuantizedTensor columnwise(Operand operand, Pass pass) {
        Scope temporary = pass.temporary();
        Quantizers present = Checks.given("quantizers", operand.quantizers());
        if (gathering.hasOneScale(present)) {
            gathering.gather(operand.keptRowwise(temporary), present, temporary, pass);
        } else if (gathering.hasScalesOfRows(present) && isWholeBlocks(operand.rows())) {
            return gathering.blockColumns(operand.columnwise(temporary), present, pass);
        } else {
            Tensor all = sites.split().gatheredInput(operand.whole(), pass);
            copies.cast(all, null, present, temporary, temporary, pass);
        }
        return copies.columnwise();
    }

    /** Returns the rowwise copy of all tokens, which backward dequantizes. */
    QuantizedTensor rowwise(Operand operand, Pass pass) {
        Quantizers present = Checks.given("quantizers", operand.quantizers());
        if (gathering.hasOneScale(present)) {
            gathering.gather(operand.keptRowwise(pass.temporary()), present, null, pass);
        } else {
            Tensor all = sites.split().gatheredInput(operand.whole(), pass);
            copies.cast(all, null, present, pass.temporary(), null, pass);
        }
        return copies.rowwise();
    }
}
