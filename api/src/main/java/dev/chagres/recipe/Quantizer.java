package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.Cast;
import dev.chagres.te.TensorScale;
import org.jspecify.annotations.Nullable;

/**
 * For authors of layers: casts the tensors of one place in a model to eight bits, as a recipe says. {@link Quantizers#at} returns it.
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

    /** Returns a number that changes whenever scales from earlier steps change. */
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
     * Returns whether the scale is known before the tensor, so that the kernel which computes the tensor can also cast it, into copies that
     * {@link #setScale} has prepared.
     */
    public boolean knowsScale() {
        return false;
    }

    /**
     * Returns whether the scale follows from the amax of the tensor. The kernel that computes the tensor may compute the amax, too; {@link
     * #cast} then takes it as the amax of its {@code copies}.
     */
    public boolean scalesByAmax() {
        return false;
    }

    /**
     * Enqueues {@code amax = max |x|} and sets it as the amax of {@code copies}, for {@link #cast}. So ranks that each have a part of a
     * tensor can reduce their amaxes before they cast.
     *
     * @param x [rows, columns]
     * @param copies a quantized tensor from {@link #empty}, whose amax this sets
     * @param temporary holds the amax
     * @throws IllegalArgumentException when the copies are another place's, the scale does not follow from the amax, or shapes, types or
     *     devices do not fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void findAmax(Tensor x, QuantizedTensor copies, Scope temporary, Stream stream) {
        check(copies);
        if (!scalesByAmax()) {
            throw new IllegalArgumentException("site: expected a scale computed from the tensor's amax, got " + site
                    + " of " + state.recipe + "; call cast");
        }
        enqueueAmax(x, copies, Checks.given("temporary", temporary), stream);
    }

    /** Enqueues the amax of {@code x} and sets it as the amax of {@code y}. */
    void enqueueAmax(Tensor x, QuantizedTensor y, Scope temporary, Stream stream) {
        throw new IllegalStateException("the scale of " + y + " does not follow from one magnitude");
    }

    /**
     * Sets the scale of {@code copies} and, when recording, the amax, for a kernel that writes the copies afterwards.
     *
     * @param copies a quantized tensor from {@link #empty}
     * @throws IllegalArgumentException when the copies are another place's, or the scale is not known before the tensor
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void setScale(QuantizedTensor copies, AmaxRecording recording) {
        check(copies);
        if (!knowsScale()) {
            throw new IllegalArgumentException("site: expected a scale that does not depend on the tensor's values,"
                    + " got " + site
                    + " of " + state.recipe + "; call cast");
        }
        enqueueScale(copies, Checks.given("recording", recording));
    }

    /**
     * Returns the scale, its inverse and the amax, for a kernel that casts its result. Their addresses do not change; the numbers are those
     * of this step, and change with {@link dev.chagres.parameter.Parameters#nextStep}.
     *
     * @param recording OFF to write the amax to memory that is not read
     * @throws IllegalArgumentException when the scale is not known before the tensor is
     * @throws IllegalStateException when the quantizers are closed
     */
    public final TensorScale tensorScale(AmaxRecording recording) {
        state.ensureOpen();
        TensorScale known = knownScale(Checks.given("recording", recording));
        if (known == null) {
            throw new IllegalArgumentException("site: expected a scale that does not depend on the tensor's values,"
                    + " got " + site
                    + " of " + state.recipe + "; call cast");
        }
        return known;
    }

    /** Like {@link #tensorScale}, but returns null when the scale is not known before the tensor. */
    @Nullable
    TensorScale knownScale(AmaxRecording recording) {
        return null;
    }

    /**
     * Enqueues the cast of {@code x}.
     *
     * @param x [rows, columns]
     * @param copies a quantized tensor from {@link #empty} with the memory of the copies to write, and with the amax of x if that is known
     *     and {@link #scalesByAmax} is true
     * @param temporary holds what is needed while the cast runs
     * @throws IllegalArgumentException when the copies are another place's, or shapes, types or devices do not fit
     * @throws IllegalStateException when the quantizers are closed
     */
    public final void cast(Tensor x, QuantizedTensor copies, AmaxRecording recording, Scope temporary, Stream stream) {
        check(copies);
        Checks.given("recording", recording);
        enqueueCast(x, copies, null, recording, Checks.given("temporary", temporary), stream);
        if (state.measurements.measures(site, recording)) {
            measure(x, copies, stream);
        }
    }

    /**
     * Enqueues the cast of {@code x} to both copies, and {@code columnSums[c] = sum over r of x[r, c]}, by one kernel: both operands that
     * products need of the gradient of an output, and the gradient of the bias.
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
            Tensor x,
            QuantizedTensor copies,
            Tensor columnSums,
            AmaxRecording recording,
            Scope temporary,
            Stream stream) {
        check(copies);
        Checks.given("recording", recording, "temporary", temporary);
        if (scaling != Scaling.TENSOR) {
            throw new IllegalArgumentException("site: expected one scale per tensor, for no kernel sums columns and"
                    + " casts to blocks at once, got " + site + " of " + state.recipe + "; call cast");
        }
        enqueueCast(x, copies, Checks.given("columnSums", columnSums), recording, temporary, stream);
        if (state.measurements.measures(site, recording)) {
            measure(x, copies, stream);
        }
    }

    /**
     * Enqueues the measurement of a cast by the kernel that computes the tensor. Call this if {@link Quantizers#measures(QuantizerSite,
     * AmaxRecording)} returns true.
     *
     * @param x [rows, columns], the tensor that was cast, rounded to 16 bits
     * @param copies with rowwise data, of the shape of x
     * @throws IllegalArgumentException when the copies are another place's, or shapes, types or devices do not fit
     * @throws IllegalStateException when {@link Quantizers#measureEvery} was never called, or the quantizers are closed
     */
    public final void measure(Tensor x, QuantizedTensor copies, Stream stream) {
        check(copies);
        state.measurements.measure(site, x, copies, stream);
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

    /** Sets the scale of {@code y}, and its amax when recording. */
    void enqueueScale(QuantizedTensor y, AmaxRecording recording) {
        throw new IllegalStateException("the scale of " + y + " follows from its values");
    }

    /**
     * Enqueues the cast of {@code x} into the copies that {@code y} has.
     *
     * @param y has its amax already if the scale follows from it and the kernel that computed {@code x} has computed it
     * @param columnSums receives the sums of the columns; null for none, as always with scales by block
     * @param temporary holds what is needed while the cast runs
     */
    abstract void enqueueCast(
            Tensor x,
            QuantizedTensor y,
            @Nullable Tensor columnSums,
            AmaxRecording recording,
            Scope temporary,
            Stream stream);

    /** Enqueues the cast with the single scale of {@code y}. */
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
