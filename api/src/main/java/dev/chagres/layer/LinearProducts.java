package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.RowSum;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * The three products of a linear layer, {@code y = x W^T + b} or without bias, {@code dx = dy W} and {@code dW = dy^T x}, and the
 * sums {@code db[c] = sum over t of dy[t, c]}: in the type of the weights, or in eight bits if their operands are.
 *
 * <p>Threading: the device's thread.
 */
final class LinearProducts {
    /**
     * From this many elements on, our own kernel sums the gradient of the output faster than the product's epilogue, which is then a
     * separate kernel: 68 µs in place of 119 for 8,192 rows of 16,384, on an H200.
     */
    private static final long SUMMED_APART = 1L << 24;

    private final LinearSites sites;
    private final Parameter weight;
    private final @Nullable Parameter bias;
    private final LinearInput input;
    private final GradientOperand gradient;
    private final LinearSplit split;
    /** Whether the caller of the current forward call adds the bias. */
    private boolean leavesBias;

    /** {@code gradient}: the gradient of the output, prepared before the products of backward. */
    LinearProducts(LinearSites sites, LinearInput input, GradientOperand gradient) {
        this.sites = sites;
        weight = sites.weight();
        bias = sites.bias();
        this.input = input;
        this.gradient = gradient;
        split = sites.split();
    }

    /** Says whether the caller of the following {@link #product} adds the bias itself; it takes this back after the call. */
    void leaveBias(boolean leave) {
        leavesBias = leave;
    }

    /** Returns the bias that the product itself adds; null if its result is reduced over ranks first, or its caller adds the bias. */
    private @Nullable Parameter addedBias() {
        return split.sumsOutput() || leavesBias ? null : bias;
    }

    /**
     * Enqueues {@code y = x W^T + b}, in a row-parallel layer reduced over the ranks before b is added; without b if the caller adds that.
     */
    void product(Operand x, Tensor y, Pass pass) {
        sites.requireMaster(pass);
        if (x.rows() == 0) {
            return;
        }
        Quantizers present = x.quantizers();
        Tensor term = split.term(y, ParallelMode.ROW, pass);
        if (present == null) {
            wholeProduct(x, term, pass);
        } else {
            quantizedProduct(x, term, present, pass);
        }
        if (split.sumsOutput()) {
            split.sumOutput(term, y, pass);
            if (bias != null && !leavesBias) {
                Elementwise.biasAdd(y, bias.weight(), null, y, pass.stream());
            }
        }
    }

    private void wholeProduct(Operand x, Tensor y, Pass pass) {
        Tensor w = weight.weight();
        Stream stream = pass.stream();
        Tensor read = split.gatheredInput(x.whole(), pass);
        Parameter addedBias = addedBias();
        if (addedBias == null) {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .product(read, w, y, Output.OVERWRITE, stream);
        } else {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .productBias(read, w, addedBias.weight(), y, stream);
        }
    }

    private void quantizedProduct(Operand x, Tensor y, Quantizers present, Pass pass) {
        QuantizedTensor a = x.rowwise();
        Tensor filled = filled(a, y, pass);
        QuantizedTensor w = sites.weightCopy(Product.FORWARD, present, pass);
        Accumulator accumulator = present.recipe().accumulator(Product.FORWARD);
        Stream stream = pass.stream();
        Parameter addedBias = addedBias();
        if (addedBias == null) {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .product(a, w, filled, Output.OVERWRITE, accumulator, stream);
        } else {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .productBias(a, w, addedBias.weight(), filled, accumulator, stream);
        }
        cut(filled, y, pass);
    }

    /**
     * Enqueues {@code y = x W^T + b} in eight bits, without a reduction over ranks.
     *
     * @param y [T, out], rowwise data alone, with a scale
     */
    void product(Operand x, QuantizedTensor y, Quantizers present, Pass pass) {
        CastProduct.product(
                x.rowwise(),
                sites.weightCopy(Product.FORWARD, present, pass),
                Transpose.YES,
                bias == null ? null : bias.weight(),
                y,
                present.recipe().accumulator(Product.FORWARD),
                pass);
    }

    /**
     * Enqueues {@code dx = dy W} in eight bits, without a reduction over ranks.
     *
     * @param dx [T, in], rowwise data alone, with a scale
     */
    void inputGradient(QuantizedTensor dx, Quantizers present, Pass pass) {
        CastProduct.product(
                gradient.rowwise(),
                sites.weightCopy(Product.INPUT_GRADIENT, present, pass),
                Transpose.NO,
                null,
                dx,
                present.recipe().accumulator(Product.INPUT_GRADIENT),
                pass);
    }

    /** Enqueues {@code before = x W^T + b} and {@code after = gelu(before)} by one kernel, of a tensor in 16 bits. */
    void productGelu(Operand x, Tensor before, Tensor after, Pass pass) {
        if (x.rows() == 0) {
            return;
        }
        Tensor w = weight.weight();
        Stream stream = pass.stream();
        Tensor read = split.gatheredInput(x.whole(), pass);
        if (bias == null) {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .productGelu(read, w, before, after, stream);
        } else {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .productBiasGelu(read, w, bias.weight(), before, after, stream);
        }
    }

    /** Returns the output of a product of {@code copy}: {@code result}, or a tensor with more rows if the copy is padded. */
    private static Tensor filled(QuantizedTensor copy, Tensor result, Pass pass) {
        return copy.rows() == result.size(0)
                ? result
                : pass.temporary().tensor(result.dtype(), copy.rows(), result.size(1));
    }

    /** Enqueues a copy of the first rows of {@code filled} if it is longer than {@code result}. */
    private static void cut(Tensor filled, Tensor result, Pass pass) {
        if (filled != result) {
            result.copyFrom(pass.stream(), pass.temporary().view(filled, 0, result.size(0), result.size(1)));
        }
    }

    /** Enqueues {@code dx = dy W}, in a column-parallel layer reduced over the ranks. */
    void inputGradient(Operand x, Tensor dx, Pass pass) {
        if (x.rows() > 0) {
            Tensor term = split.term(dx, ParallelMode.COLUMN, pass);
            inputGradientOfRank(x, term, pass);
            split.sumInputGradient(term, dx, pass);
        }
    }

    private void inputGradientOfRank(Operand x, Tensor dx, Pass pass) {
        Quantizers present = gradient.quantizers();
        Stream stream = pass.stream();
        if (present == null) {
            MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan())
                    .product(gradient.whole(), sites.wholeWeight(x, pass), dx, Output.OVERWRITE, stream);
            return;
        }
        Tensor filled = filled(gradient.rowwise(), dx, pass);
        MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan())
                .product(
                        gradient.rowwise(),
                        sites.weightCopy(Product.INPUT_GRADIENT, present, pass),
                        filled,
                        Output.OVERWRITE,
                        present.recipe().accumulator(Product.INPUT_GRADIENT),
                        stream);
        cut(filled, dx, pass);
    }

    /** Enqueues the gradients of weight and bias. */
    void parameterGradients(Operand x, Pass pass) {
        if (x.isQuantized()) {
            quantizedWeightGradient(x, pass);
            sumBiasGradient(pass);
            return;
        }
        if (weight.isFrozen()) {
            sumBiasGradient(pass);
            return;
        }
        Parameter summed = biasOfProduct(x);
        Output output = pass.nextGradient(weight);
        Tensor read = split.gatheredInput(input.whole(x, pass), pass);
        // The epilogue writes a bias gradient in the product's type; that of a bias is FP32.
        if (summed == null || weight.gradient().dtype() != DType.FLOAT32) {
            weightGradient(read, output, pass);
            sumBiasGradient(pass);
            return;
        }
        pass.nextGradient(summed);
        MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan())
                .productBiasGradient(gradient.whole(), read, summed.gradient(), weight.gradient(), pass.stream());
    }

    /** Returns the bias where the epilogue of the weight gradient's product can sum its gradient: it can write one, but not add to one. */
    private @Nullable Parameter biasOfProduct(Operand x) {
        return bias != null
                        && sites.learnsBias()
                        && !split.gathersGradient()
                        && x.rows() > 0
                        && x.rows() * bias.shape().count() < SUMMED_APART
                        && !weight.hasGradient()
                        && !bias.hasGradient()
                ? bias
                : null;
    }

    private void quantizedWeightGradient(Operand x, Pass pass) {
        if (weight.isFrozen()) {
            return;
        }
        Quantizers present = gradient.quantizers();
        if (present != null) {
            Output output = pass.nextGradient(weight);
            MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan())
                    .product(
                            gradient.columnwise(),
                            input.columnwise(x, pass),
                            weight.gradient(),
                            output,
                            present.recipe().accumulator(Product.WEIGHT_GRADIENT),
                            pass.stream());
            return;
        }
        Recipe recipe = Checks.given("quantizers", x.quantizers()).recipe();
        if (recipe.backwardOverride() == BackwardOverride.HIGH_PRECISION) {
            Tensor read = split.gatheredInput(input.whole(x, pass), pass);
            weightGradient(read, pass.nextGradient(weight), pass);
            return;
        }
        QuantizedTensor read = input.rowwise(x, pass);
        Tensor again = pass.temporary().tensor(gradient.whole().dtype(), read.rows(), read.columns());
        QuantizedCopies.dequantize(read, again, pass);
        Tensor first =
                QuantizedCopies.first(pass.temporary(), again, gradient.whole().size(0));
        weightGradient(first, pass.nextGradient(weight), pass);
    }

    private void weightGradient(Tensor x, Output output, Pass pass) {
        MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan())
                .product(gradient.whole(), x, weight.gradient(), output, pass.stream());
    }

    private void sumBiasGradient(Pass pass) {
        if (bias == null || bias.isFrozen()) {
            return;
        }
        Output output = pass.nextGradient(bias);
        Tensor sums = gradient.columnSums();
        if (sums == null) {
            RowSum.rowSum(gradient.own(), bias.gradient(), output, pass.stream());
        } else {
            Elementwise.accumulate(sums, bias.gradient(), output, pass.stream());
        }
    }

    /**
     * A product that casts its result itself.
     */
    private static final class CastProduct {
        private CastProduct() {}

        /**
         * Enqueues {@code d = a op(b) + bias} in eight bits and, where d has an amax, {@code amax = max(amax, max |d|)}.
         *
         * @param d rowwise data alone, with a scale
         */
        static void product(
                QuantizedTensor a,
                QuantizedTensor b,
                Transpose transB,
                @Nullable Tensor bias,
                QuantizedTensor d,
                Accumulator accumulator,
                Pass pass) {
            Tensor largest = d.amax();
            if (largest == null || d.rows() == 0) {
                Gemm.gemm(a, Transpose.NO, b, transB, bias, d, accumulator, pass.stream());
                return;
            }
            Tensor own = pass.temporary().tensor(DType.FLOAT32, 1);
            d.amax(own);
            Gemm.gemm(a, Transpose.NO, b, transB, bias, d, accumulator, pass.stream());
            d.amax(largest);
            LargestMagnitude.raise(largest, own, Checks.given("scale", d.scale()), d.dtype(), pass);
        }
    }
}
