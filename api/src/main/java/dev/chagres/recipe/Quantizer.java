package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite;
import dev.chagres.te.Cast;
import dev.chagres.te.TensorScale;
import org.jspecify.annotations.Nullable;

/**
 * For authors of layers: casts the tensors of one place in a model to eight bits, as a recipe says. {@link Quantizers#at} has it.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Quantizer}.
 */
public abstract sealed class Quantizer permits DelayedQuantizer, CurrentQuantizer, BlockQuantizer {
    private final QuantizerSite site;
    private final Scaling scaling;
    private final DType dtype;
    private final RecipeState state;

    Quantizer(QuantizerSite site, Scaling scaling, RecipeState state) {
        this.site = site;
        this.scaling = scaling;
        dtype = state.dtype(site.role());
        this.state = state;
    }

    /** Returns the place. */
    public final QuantizerSite site() {
        return site;
    }

    /** Returns how many elements share a scale. */
    public final Scaling scaling() {
        return scaling;
    }

    /** Returns the type of the copies. */
    public final DType dtype() {
        return dtype;
    }

    /** Returns a number that changes whenever scales of earlier steps do. */
    final int scalesVersion() {
        return state.version();
    }

    /**
     * Hands out a quantized tensor of this place's type, without copies.
     *
     * @throws IllegalArgumentException when a size is negative
     */
    public final QuantizedTensor empty(Scope from, long rows, long columns) {
        return Checks.given("from", from).quantized(scaling, dtype, rows, columns);
    }

    /**
     * Returns whether the scale is known before the tensor is, so that the kernel which computes the tensor can cast it, too:
     * into copies that {@link #setScale} has prepared.
     */
    public boolean knowsScale() {
        return false;
    }

    /**
     * Returns whether the scale follows from the largest magnitude of the tensor. A kernel that computes the tensor may find it,
     * too: {@link #cast} takes it as the amax of its {@code copies}.
     */
    public boolean scalesByAmax() {
        return false;
    }

    /**
     * Enqueues {@code amax = max |x|} where the scale follows from it, and gives {@code copies} that amax: {@link #cast} takes it. So ranks
     * that have a part of a tensor each can reduce theirs before they cast.
     *
     * @param x [rows, columns]
     * @param copies a quantized tensor from {@link #empty}, whose amax this sets
     * @param temporary holds the amax
     * @throws IllegalArgumentException when the copies are another place's, the scale does not follow from the largest magnitude, or
     *     shapes, types or devices do not fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void findAmax(Tensor x, QuantizedTensor copies, Scope temporary, Stream stream) {
        check(copies);
        if (!scalesByAmax()) {
            throw new IllegalArgumentException(
                    "site: expected a scale that follows from the tensor's largest magnitude, got " + site + " of "
                            + state.recipe() + "; call cast");
        }
        enqueueAmax(x, copies, Checks.given("temporary", temporary), stream);
    }

    /** Gives {@code y} the largest magnitude of {@code x} as its amax. */
    void enqueueAmax(Tensor x, QuantizedTensor y, Scope temporary, Stream stream) {
        throw new IllegalStateException("the scale of " + y + " does not follow from one magnitude");
    }

    /**
     * Gives {@code copies} the scale and, where that is recorded, the place for the largest magnitude; a kernel fills the copies
     * then.
     *
     * @param copies a quantized tensor from {@link #empty}
     * @throws IllegalArgumentException when the copies are another place's, or the scale is not known before the tensor is
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void setScale(QuantizedTensor copies, Recording recording) {
        check(copies);
        if (!knowsScale()) {
            throw new IllegalArgumentException("site: expected a scale that is known before the tensor is, got " + site
                    + " of " + state.recipe() + "; call cast");
        }
        enqueueScale(copies, Checks.given("recording", recording));
    }

    /**
     * Returns the scale, its inverse and where the largest magnitude goes, for a kernel that casts what it computes. The cells stay
     * where they are; the numbers are those of this step, and another step's after {@link
     * dev.chagres.model.Parameters#nextStep}.
     *
     * @param recording OFF: the largest magnitude goes where nobody reads it
     * @throws IllegalArgumentException when the scale is not known before the tensor is
     * @throws IllegalStateException when the quantizers are closed
     */
    public final TensorScale tensorScale(Recording recording) {
        state.ensureOpen();
        TensorScale known = knownScale(Checks.given("recording", recording));
        if (known == null) {
            throw new IllegalArgumentException("site: expected a scale that is known before the tensor is, got " + site
                    + " of " + state.recipe() + "; call cast");
        }
        return known;
    }

    /** Returns what {@link #tensorScale} does, or null when the scale is not known before the tensor is. */
    @Nullable
    TensorScale knownScale(Recording recording) {
        return null;
    }

    /**
     * Enqueues the cast of {@code x}.
     *
     * @param x [rows, columns]
     * @param copies an empty quantized tensor with the copies that are wanted, from {@link #empty}; with the largest magnitude of
     *     x as its amax where that is known and {@link #scalesByAmax} is true
     * @param temporary holds what is needed while the cast runs
     * @throws IllegalArgumentException when the copies are another place's, or shapes, types or devices do not fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void cast(Tensor x, QuantizedTensor copies, Recording recording, Scope temporary, Stream stream) {
        check(copies);
        Checks.given("recording", recording);
        enqueueCast(x, copies, null, recording, Checks.given("temporary", temporary), stream);
        if (state.measurements().measures(site, recording)) {
            measure(x, copies, stream);
        }
    }

    /**
     * Enqueues the cast of {@code x} to both copies, and {@code columnSums[c] = sum over r of x[r, c]}, by one kernel: what a
     * product needs of the gradient of its output, and the gradient of its bias.
     *
     * @param x [rows, columns], rows a multiple of 8, columns of 4
     * @param copies a quantized tensor with both copies, from {@link #empty}; its amax as for {@link #cast}
     * @param columnSums [columns], in the type of x
     * @param temporary holds what is needed while the cast runs
     * @throws IllegalArgumentException when the copies are another place's, blocks are scaled, or shapes, types or devices do not
     *     fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void castAndSumColumns(
            Tensor x, QuantizedTensor copies, Tensor columnSums, Recording recording, Scope temporary, Stream stream) {
        check(copies);
        Checks.given("recording", recording);
        Checks.given("temporary", temporary);
        if (scaling != Scaling.TENSOR) {
            throw new IllegalArgumentException("site: expected one scale a tensor, for no kernel sums columns beside"
                    + " blocks, got " + site + " of " + state.recipe() + "; call cast");
        }
        enqueueCast(x, copies, Checks.given("columnSums", columnSums), recording, temporary, stream);
        if (state.measurements().measures(site, recording)) {
            measure(x, copies, stream);
        }
    }

    /**
     * Where a kernel casts what it computes: enqueues the measurement of the cast. Call it where {@link
     * Quantizers#measures(QuantizerSite, Recording)} says so.
     *
     * @param x [rows, columns], what the copies were made of, rounded to 16 bits
     * @param copies with rowwise data, of the shape of x
     * @throws IllegalArgumentException when the copies are another place's, or shapes, types or devices do not fit
     * @throws IllegalStateException when {@link Quantizers#measureEvery} was never called, or the quantizers are closed
     */
    public final void measure(Tensor x, QuantizedTensor copies, Stream stream) {
        check(copies);
        state.measurements().measure(site, x, copies, stream);
    }

    final void ensureOpen() {
        state.ensureOpen();
    }

    private void check(QuantizedTensor copies) {
        state.ensureOpen();
        if (Checks.given("copies", copies).scaling() != scaling || copies.dtype() != dtype) {
            throw new IllegalArgumentException(
                    "copies: expected " + dtype + " scaled by " + scaling + " at " + site + ", got " + copies);
        }
    }

    /** Gives {@code y} the scale, and the place for its largest magnitude where that is recorded. */
    void enqueueScale(QuantizedTensor y, Recording recording) {
        throw new IllegalStateException("the scale of " + y + " follows from its values");
    }

    /**
     * Enqueues the cast of {@code x} into the copies that {@code y} has.
     *
     * @param y has an amax already where the scale follows from it and the kernel found it that computed {@code x}
     * @param columnSums receives the sums of the columns; null where none are wanted, as always where blocks are scaled
     * @param temporary holds what is needed while the cast runs
     */
    abstract void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            Recording recording,
            Scope temporary,
            Stream stream);

    /** Enqueues the cast by one scale, which {@code y} has. */
    static void castByOneScale(Tensor x, QuantizedTensor y, @Nullable Tensor columnSums, Stream stream) {
        if (columnSums == null) {
            Cast.quantize(x, y, stream);
        } else {
            Cast.quantizeDbias(x, y, columnSums, stream);
        }
    }

    /** Returns the place and the type of the copies. */
    @Override
    public final String toString() {
        return site + " in " + dtype + " scaled by " + scaling;
    }
}
