package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.QuantizerSite;
import dev.chagres.model.QuantizerSite.Role;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.RowSum;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * The three products of a linear layer, {@code y = x W^T + b} or without bias, {@code dx = dy W} and {@code dW = dy^T x}: in the type of the
 * weights, or in eight bits where the pass's recipe says so.
 *
 * <p>Backward computes as forward did, whatever the pass says by then: the operand remembers.
 *
 * <p>Threading: the device's thread.
 */
final class LinearProducts {
    private final Parameter weight;
    private final @Nullable Parameter bias;
    private final QuantizerSite inputSite;
    private final QuantizerSite weightSite;
    private final QuantizerSite gradientSite;
    private final EightBitCopies inputCopies;
    /** The input whose copies or largest magnitude its producer has filled, until {@link #prepare} uses them. */
    private final Kept offer = new Kept("the input that was cast where it was computed");

    private @Nullable Tensor offeredAmax;
    /** The gradient of the output that {@link #begin} was called with. */
    private final GradientOperand gradient;

    LinearProducts(Parameter weight, @Nullable Parameter bias, ModelPlan plan) {
        this.weight = weight;
        this.bias = bias;
        inputSite = plan.quantizer("input", Role.INPUT);
        weightSite = plan.quantizer("weight", weight);
        gradientSite = plan.quantizer("output_gradient", Role.GRADIENT);
        inputCopies = new EightBitCopies(inputSite);
        gradient = new GradientOperand(gradientSite);
    }

    /** Returns the recipe's state where forward of {@code pass} computes in eight bits, or null. */
    @Nullable
    Quantizers quantizers(Pass pass) {
        Quantizers present = covering(pass);
        return present == null || pass.isCalibrating() ? null : present;
    }

    private @Nullable Quantizers covering(Pass pass) {
        Quantizers present = pass.quantizers();
        if (present == null) {
            return null;
        }
        // A tied weight may be another plan's; the bias never is.
        Parameter own = bias == null ? weight : bias;
        if (present.parameters() != own.owner()) {
            throw new IllegalStateException(own.name() + ": expected pass.autocast with the quantizers of its own"
                    + " parameters, got those of others; call pass.autocast or pass.noAutocast before this layer");
        }
        return present.covers(inputSite) && fits() ? present : null;
    }

    /** Returns whether backward reads the whole input of {@code rows}, where forward of {@code pass} is followed by one. */
    boolean keepsWhole(long rows, Pass pass) {
        Quantizers present = quantizers(pass);
        return rows == 0 || present == null || present.recipe().backwardOverride() == BackwardOverride.HIGH_PRECISION;
    }

    /** Returns whether both sizes of the weight are ones that eight-bit products sum over. */
    boolean fits() {
        return weight.shape().size(0) % EightBitCopies.STEP == 0
                && weight.shape().size(1) % EightBitCopies.STEP == 0;
    }

    /**
     * Makes {@code operand} of the input x [T, in].
     *
     * @param keptIn holds what backward needs; null where no backward comes
     */
    void prepare(Tensor x, Operand operand, @Nullable Scope keptIn, Pass pass) {
        if (!offer.isOf(x)) {
            prepare(x, null, operand, keptIn, pass);
            return;
        }
        Tensor amax = offeredAmax;
        offer.clear();
        offeredAmax = null;
        if (amax != null) {
            prepare(x, amax, operand, keptIn, pass);
            return;
        }
        Quantizers present = Checks.given("quantizers", covering(pass));
        operand.set(x, inputCopies.rowwise(), present);
        measureInput(x, present, pass);
        if (inputCopies.hasColumnwise()) {
            operand.keepColumnwise(inputCopies.columnwise());
        }
    }

    /**
     * Makes {@code operand} of the input x [T, in].
     *
     * @param amax the largest magnitude of x, where the kernel found it that computed x; null: not known
     * @param keptIn holds what backward needs; null where no backward comes
     */
    void prepare(Tensor x, @Nullable Tensor amax, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Quantizers present = covering(pass);
        if (present == null || x.size(0) == 0) {
            operand.set(x);
            return;
        }
        Scope temporary = pass.temporary();
        if (pass.isCalibrating()) {
            inputCopies.cast(x, null, present, temporary, null, pass);
            present.weight(weightSite, pass.recording(), temporary, pass.stream());
            operand.set(x);
            return;
        }
        BackwardOverride override = present.recipe().backwardOverride();
        boolean keeps = keptIn != null && !weight.isFrozen();
        boolean transposes = keeps && override == BackwardOverride.NONE;
        boolean dequantizes = keeps && override == BackwardOverride.DEQUANTIZED;
        Scope rowsIn = dequantizes ? Checks.given("keptIn", keptIn) : temporary;
        inputCopies.cast(x, amax, present, rowsIn, transposes ? keptIn : null, pass);
        operand.set(x, inputCopies.rowwise(), present);
        if (transposes || dequantizes) {
            keepCopy(operand, override);
        } else if (keeps) {
            operand.keepWhole(x);
        }
    }

    private void keepCopy(Operand operand, BackwardOverride override) {
        if (override == BackwardOverride.NONE) {
            operand.keepColumnwise(inputCopies.columnwise());
        } else {
            operand.keepRowwise(inputCopies.rowwise());
        }
    }

    /** Makes {@code operand} of the same input for forward's product again, as {@link #prepare} did. */
    void castAgain(Tensor x, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        if (present == null) {
            operand.set(x);
        } else {
            inputCopies.cast(x, null, present, pass.temporary(), null, pass);
            operand.set(x, inputCopies.rowwise(), present);
        }
    }

    /**
     * Makes {@code operand} of the same input again in backward, as {@link #prepare} did without a place to keep it.
     *
     * @param amax the largest magnitude of x, where the kernel found it that computed x; null: not known
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
        inputCopies.cast(x, amax, present, temporary, override == BackwardOverride.NONE ? temporary : null, pass);
        keepCopy(operand, override);
    }

    /**
     * Returns a place, 0 so far, for the largest magnitude of the input [rows, in], which the kernel fills that computes the
     * input; null where forward of {@code pass} needs none.
     */
    @Nullable
    Tensor takeAmax(long rows, Pass pass) {
        return rows > 0 && scalesByAmax(pass) ? zero(pass) : null;
    }

    /** Returns whether the scale of the input follows from its largest magnitude in forward of {@code pass}. */
    boolean scalesByAmax(Pass pass) {
        Quantizers present = quantizers(pass);
        return present != null && present.scalesByAmax(inputSite);
    }

    /** The same of an operand that is made again in backward. */
    @Nullable
    Tensor takeAmaxAgain(Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        return present != null && present.scalesByAmax(inputSite) ? zero(pass) : null;
    }

    /** The same of the gradient of the output, whose forward has read {@code x}; null where backward needs none. */
    @Nullable
    Tensor takeAmaxOfGradient(Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        if (present == null || present.recipe().backwardOverride() != BackwardOverride.NONE) {
            return null;
        }
        return present.scalesByAmax(gradientSite) ? zero(pass) : null;
    }

    private static Tensor zero(Pass pass) {
        Tensor amax = pass.temporary().tensor(DType.FLOAT32, 1);
        amax.zero(pass.stream());
        return amax;
    }

    /** Returns whether forward of {@code pass} lets the kernel that computes the input cast it. */
    boolean takesCopies(long rows, Pass pass) {
        Quantizers present = quantizers(pass);
        return rows > 0 && present != null && present.knowsScale(inputSite);
    }

    /**
     * Makes {@code operand} of an input [rows, in] that the kernel casts which computes it.
     *
     * @param keptIn holds what backward needs; null where no backward comes
     * @return what that kernel fills, with both copies rows rounded up to a multiple of 16; null where {@link #prepare} casts
     *     the input
     */
    @Nullable
    QuantizedTensor takeCopies(long rows, Operand operand, @Nullable Scope keptIn, Pass pass) {
        Quantizers present = takesCopies(rows, pass) ? quantizers(pass) : null;
        if (present == null) {
            return null;
        }
        boolean keeps = keptIn != null && !weight.isFrozen();
        QuantizedTensor copies = take(rows, present, keeps ? keptIn : null, pass);
        operand.set(rows, inputCopies.rowwise(), present);
        if (keeps) {
            operand.keepColumnwise(inputCopies.columnwise());
        }
        return copies;
    }

    /**
     * Takes memory for what the kernel fills besides which computes the input x: its copies, and then nothing reads x itself, or
     * its largest magnitude. {@link #prepare} of x uses that.
     *
     * @return copies with a scale; or one without parts but amax; null where {@link #prepare} needs x alone
     */
    @Nullable
    QuantizedTensor offer(Tensor x, Pass pass) {
        offer.clear();
        Quantizers present = x.size(0) > 0 ? quantizers(pass) : null;
        if (present == null) {
            return null;
        }
        offeredAmax = takeAmax(x.size(0), pass);
        if (offeredAmax != null) {
            offer.set(x);
            return present.empty(inputSite, pass.temporary(), x.size(0), x.size(1))
                    .amax(offeredAmax);
        }
        if (!present.knowsScale(inputSite)) {
            return null;
        }
        offer.set(x);
        return take(x.size(0), present, pass.isSaving() && !weight.isFrozen() ? pass.kept() : null, pass);
    }

    /** Makes {@code operand} of the same input again in backward, as {@link #takeCopies} did without a place to keep it. */
    @Nullable
    QuantizedTensor takeCopiesAgain(long rows, Operand operand, Pass pass) {
        Quantizers present = operand.quantizers();
        if (present == null || !present.knowsScale(inputSite)) {
            return null;
        }
        QuantizedTensor copies = take(rows, present, pass.temporary(), pass);
        operand.keepColumnwise(inputCopies.columnwise());
        return copies;
    }

    private QuantizedTensor take(long rows, Quantizers present, @Nullable Scope columnsIn, Pass pass) {
        QuantizedTensor copies = inputCopies.take(rows, weight.shape().size(1), present, pass.temporary(), columnsIn);
        present.setScale(inputSite, copies, pass.recording());
        return copies;
    }

    /** Returns whether casts of {@code pass} are measured. */
    boolean measures(Pass pass) {
        Quantizers present = quantizers(pass);
        return present != null && present.measures(pass.recording());
    }

    /** Enqueues the measurement of the input's latest cast by the kernel that computed x, where this step is measured. */
    void measureInput(Tensor x, Quantizers present, Pass pass) {
        if (present.measures(pass.recording())) {
            present.measure(inputSite, x, inputCopies.rowwise(), pass.stream());
        }
    }

    /** The same of the gradient dy of the output. */
    void measureGradient(Tensor dy, Pass pass) {
        Quantizers present = gradient.quantizers();
        if (present != null && present.measures(pass.recording())) {
            present.measure(gradientSite, dy, gradient.rowwise(), pass.stream());
        }
    }

    /** Enqueues {@code y = x W^T + b}. */
    void product(Operand x, Tensor y, Pass pass) {
        Quantizers present = x.quantizers();
        if (present != null) {
            quantizedProduct(x, y, present, pass);
            return;
        }
        Tensor w = weight.weight();
        Stream stream = pass.stream();
        if (bias == null) {
            Gemm.gemm(x.whole(), Transpose.NO, w, Transpose.YES, y, Output.OVERWRITE, stream);
        } else {
            Gemm.gemmBias(x.whole(), Transpose.NO, w, Transpose.YES, bias.weight(), y, stream);
        }
    }

    private void quantizedProduct(Operand x, Tensor y, Quantizers present, Pass pass) {
        QuantizedTensor a = x.rowwise();
        Tensor filled = filled(a, y, pass);
        QuantizedTensor w = weightIn(present, pass);
        Gemm.Accumulator accumulator = present.recipe().accumulator(Product.FORWARD);
        Stream stream = pass.stream();
        if (bias == null) {
            Gemm.gemm(a, Transpose.NO, w, Transpose.YES, filled, Output.OVERWRITE, accumulator, stream);
        } else {
            Gemm.gemmBias(a, Transpose.NO, w, Transpose.YES, bias.weight(), filled, accumulator, stream);
        }
        cut(filled, y, pass);
    }

    /** Enqueues {@code before = x W^T + b} and {@code after = gelu(before)} by one kernel, of a tensor in 16 bits. */
    void productGelu(Operand x, Tensor before, Tensor after, Pass pass) {
        Tensor w = weight.weight();
        Stream stream = pass.stream();
        if (bias == null) {
            Gemm.gemmGelu(x.whole(), Transpose.NO, w, Transpose.YES, before, after, stream);
        } else {
            Gemm.gemmBiasGelu(x.whole(), Transpose.NO, w, Transpose.YES, bias.weight(), before, after, stream);
        }
    }

    /** Returns where a product of {@code copy} is stored: {@code result}, or more rows where the copy was filled up. */
    private static Tensor filled(QuantizedTensor copy, Tensor result, Pass pass) {
        return copy.rows() == result.size(0)
                ? result
                : pass.temporary().tensor(result.dtype(), copy.rows(), result.size(1));
    }

    /** Enqueues a copy of the first rows of {@code filled} where it is longer than {@code result}. */
    private static void cut(Tensor filled, Tensor result, Pass pass) {
        if (filled != result) {
            result.copyFrom(pass.stream(), pass.temporary().view(filled, 0, result.size(0), result.size(1)));
        }
    }

    private QuantizedTensor weightIn(Quantizers present, Pass pass) {
        return present.weight(weightSite, pass.recording(), pass.temporary(), pass.stream());
    }

    /** Begins backward: casts the gradient of the output where forward read eight bits, and backward does, too. */
    void begin(Tensor newDy, Operand x, Pass pass) {
        begin(newDy, null, x, pass);
    }

    /**
     * Begins backward as {@link #begin(Tensor, Operand, Pass)} does.
     *
     * @param amax the largest magnitude of newDy, where the kernel found it that computed newDy; null: not known
     */
    void begin(Tensor newDy, @Nullable Tensor amax, Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        if (present == null || present.recipe().backwardOverride() != BackwardOverride.NONE) {
            gradient.set(newDy);
            Quantizers recording = pass.isCalibrating() && newDy.size(0) > 0 ? covering(pass) : null;
            if (recording != null) {
                gradient.record(newDy, recording, pass);
            }
        } else if (learnsBias() && present.scaling(gradientSite) == Scaling.TENSOR) {
            gradient.castAndSumColumns(newDy, amax, present, pass);
        } else if (weight.isFrozen()) {
            gradient.castRows(newDy, amax, present, pass);
        } else {
            gradient.cast(newDy, amax, present, pass);
        }
    }

    /**
     * Begins backward with a gradient [rows, out] that the kernel casts which computes it.
     *
     * @param columnSums [out], what that kernel writes the sums of the gradient's columns to; null where there is no bias
     * @return what that kernel fills, rows rounded up to a multiple of 16; null where {@link #begin} casts the gradient
     */
    @Nullable
    QuantizedTensor beginWithCopies(long rows, @Nullable Tensor columnSums, Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        // Bits of gradients do not depend on what is frozen, so neither does the kernel.
        if (present == null || !present.knowsScale(gradientSite)) {
            return null;
        }
        return gradient.take(rows, weight.shape().size(0), columnSums, present, pass);
    }

    boolean hasBias() {
        return bias != null;
    }

    private boolean learnsBias() {
        return bias != null && !bias.isFrozen();
    }

    /** Returns whether the products of backward read eight bits. */
    boolean isQuantizedBackward() {
        return gradient.quantizers() != null;
    }

    /** Enqueues {@code dx = dy W}. */
    void inputGradient(Operand x, Tensor dx, Pass pass) {
        Quantizers present = gradient.quantizers();
        Stream stream = pass.stream();
        if (present == null) {
            Gemm.gemm(gradient.whole(), Transpose.NO, weightOf(x, pass), Transpose.NO, dx, Output.OVERWRITE, stream);
            return;
        }
        Tensor filled = filled(gradient.rowwise(), dx, pass);
        Gemm.gemm(
                gradient.rowwise(),
                Transpose.NO,
                weightIn(present, pass),
                Transpose.NO,
                filled,
                Output.OVERWRITE,
                present.recipe().accumulator(Product.INPUT_GRADIENT),
                stream);
        cut(filled, dx, pass);
    }

    /** Returns the weight in its own type: itself or, where backward dequantizes, what forward has read. */
    Tensor weightOf(Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        if (present == null || present.recipe().backwardOverride() != BackwardOverride.DEQUANTIZED) {
            return weight.weight();
        }
        Tensor again = pass.temporary().like(weight.weight());
        Cast.dequantize(weightIn(present, pass), again, pass.stream());
        return again;
    }

    /** Enqueues the gradients of weight and bias. */
    void parameterGradients(Operand x, Pass pass) {
        if (x.isQuantized()) {
            quantizedWeightGradient(x, pass);
            sumBiasGradient(pass);
            return;
        }
        if (bias != null
                && learnsBias()
                && !weight.isFrozen()
                && x.rows() > 0
                && !weight.hasGradient()
                && !bias.hasGradient()) {
            pass.nextGradient(weight);
            pass.nextGradient(bias);
            Gemm.gemmBiasGradient(
                    gradient.whole(), x.whole(), Transpose.NO, bias.gradient(), weight.gradient(), pass.stream());
            return;
        }
        // The product's epilogue can write a bias gradient, but not add to one.
        if (!weight.isFrozen()) {
            weightGradient(x.whole(), pass);
        }
        sumBiasGradient(pass);
    }

    private void quantizedWeightGradient(Operand x, Pass pass) {
        if (weight.isFrozen()) {
            return;
        }
        Quantizers present = gradient.quantizers();
        if (present != null) {
            Output output = pass.nextGradient(weight);
            Gemm.gemm(
                    gradient.columnwise(),
                    Transpose.YES,
                    x.columnwise(pass.temporary()),
                    Transpose.NO,
                    weight.gradient(),
                    output,
                    present.recipe().accumulator(Product.WEIGHT_GRADIENT),
                    pass.stream());
            return;
        }
        Recipe recipe = Checks.given("quantizers", x.quantizers()).recipe();
        if (recipe.backwardOverride() == BackwardOverride.HIGH_PRECISION) {
            weightGradient(x.whole(), pass);
            return;
        }
        Scope temporary = pass.temporary();
        QuantizedTensor kept = x.keptRowwise(temporary);
        Tensor again = temporary.tensor(gradient.whole().dtype(), kept.rows(), kept.columns());
        Cast.dequantize(kept, again, pass.stream());
        weightGradient(temporary.view(again, 0, x.rows(), kept.columns()), pass);
    }

    private void weightGradient(Tensor x, Pass pass) {
        Output output = pass.nextGradient(weight);
        Gemm.gemm(gradient.whole(), Transpose.YES, x, Transpose.NO, weight.gradient(), output, pass.stream());
    }

    private void sumBiasGradient(Pass pass) {
        if (bias == null || bias.isFrozen()) {
            return;
        }
        Output output = pass.nextGradient(bias);
        Tensor sums = gradient.columnSums();
        if (sums == null) {
            RowSum.rowSum(gradient.whole(), bias.gradient(), output, pass.stream());
        } else {
            Elementwise.accumulate(sums, bias.gradient(), output, pass.stream());
        }
    }

    /** Returns which kernels compute the products of {@code pass}, and why not the others. */
    String explain(Pass pass) {
        Quantizers present = covering(pass);
        if (present != null && !pass.isCalibrating()) {
            return ProductExplanation.inEightBits(present, inputSite, bias != null);
        }
        return ProductExplanation.inOwnType(bias != null)
                + ProductExplanation.whyNotInEightBits(pass, inputSite, weight, fits());
    }
}
