package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.adapter.LowRankAdapter;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
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
    private final QuantizedInput input;
    private final QuantizedGradient gradient;
    private final LinearSplit split;
    /** Whether the caller of the current forward call adds the bias. */
    private boolean leavesBias;

    /** {@code gradient}: the gradient of the output, prepared before the products of backward. */
    LinearProducts(LinearSites sites, QuantizedInput input, QuantizedGradient gradient) {
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
        Parameter left = leavesBias ? null : bias;
        Parameter added = split.sumsOutput() ? null : left;
        if (present == null) {
            wholeProduct(x, added, term, pass);
        } else {
            quantizedProduct(x.rowwise(), Product.FORWARD, added, term, present, pass);
        }
        LowRankAdapter adapter = sites.adapter();
        if (adapter != null && x.adapted.isKept()) {
            adapter.addAgain(term, x.adapted, pass);
        } else if (adapter != null) {
            adapter.addTo(x.whole(), term, x.adapted, pass);
        }
        if (split.sumsOutput()) {
            split.sumOutput(term, y, pass);
            if (left != null) {
                Elementwise.biasAdd(y, left.weight(), null, y, pass.stream());
            }
        }
    }

    private void wholeProduct(Operand x, @Nullable Parameter added, Tensor y, Pass pass) {
        Tensor w = weight.weight();
        Stream stream = pass.stream();
        Tensor read = split.gatheredInput(x.whole(), pass);
        if (added == null) {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .product(read, w, y, Output.OVERWRITE, stream);
        } else {
            MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                    .productBias(read, w, added.weight(), y, stream);
        }
    }

    /** Enqueues {@code y = a op(W) + added} in eight bits, the first rows where the copy a is filled up. */
    private void quantizedProduct(
            QuantizedTensor a, Product product, @Nullable Parameter added, Tensor y, Quantizers present, Pass pass) {
        boolean fills = a.rows() != y.size(0);
        Tensor filled = fills ? pass.temporary().tensor(y.dtype(), a.rows(), y.size(1)) : y;
        QuantizedTensor w = sites.weightCopy(product, present, pass);
        Transpose transW = transposed(product);
        Accumulator sums = present.recipe().accumulator(product);
        ProductPlan plan = pass.productPlan();
        Stream stream = pass.stream();
        if (added == null) {
            MatrixProduct.of(Transpose.NO, transW, plan).product(a, w, filled, Output.OVERWRITE, sums, stream);
        } else {
            MatrixProduct.of(Transpose.NO, transW, plan).productBias(a, w, added.weight(), filled, sums, stream);
        }
        if (fills) {
            y.copyFrom(stream, pass.temporary().view(filled, 0, y.size(0), y.size(1)));
        }
    }

    private static Transpose transposed(Product product) {
        return product == Product.FORWARD ? Transpose.YES : Transpose.NO;
    }

    /**
     * Enqueues {@code y = x W^T + b} in eight bits, without a reduction over ranks.
     *
     * @param y [T, out], rowwise data alone, with a scale
     */
    void product(Operand x, QuantizedTensor y, Quantizers present, Pass pass) {
        castProduct(x.rowwise(), Product.FORWARD, bias, y, present, pass);
    }

    /**
     * Enqueues {@code dx = dy W} in eight bits, without a reduction over ranks.
     *
     * @param dx [T, in], rowwise data alone, with a scale
     */
    void inputGradient(QuantizedTensor dx, Quantizers present, Pass pass) {
        castProduct(gradient.rowwise(), Product.INPUT_GRADIENT, null, dx, present, pass);
    }

    /** Enqueues {@code d = a op(W) + added}, which the product itself casts, and, where d has an amax, {@code amax = max(amax, max |d|)}. */
    private void castProduct(
            QuantizedTensor a,
            Product product,
            @Nullable Parameter added,
            QuantizedTensor d,
            Quantizers present,
            Pass pass) {
        QuantizedTensor w = sites.weightCopy(product, present, pass);
        Tensor largest = d.rows() == 0 ? null : d.amax();
        Tensor own = largest == null ? null : pass.temporary().tensor(DType.FLOAT32, 1);
        if (own != null) {
            d.amax(own);
        }
        Accumulator sums = present.recipe().accumulator(product);
        Tensor summand = added == null ? null : added.weight();
        Gemm.gemm(a, Transpose.NO, w, transposed(product), summand, d, sums, pass.stream());
        if (own != null && largest != null) {
            d.amax(largest);
            QuantizedCopies.raiseAmax(largest, own, Checks.given("scale", d.scale()), d.dtype(), pass);
        }
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

    /** Enqueues {@code dx = dy W}, in a column-parallel layer reduced over the ranks. */
    void inputGradient(Operand x, Tensor dx, Pass pass) {
        if (x.rows() > 0) {
            Tensor term = split.term(dx, ParallelMode.COLUMN, pass);
            Quantizers present = gradient.quantizers();
            if (present == null) {
                MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan())
                        .product(gradient.whole(), sites.wholeWeight(x, pass), term, Output.OVERWRITE, pass.stream());
            } else {
                quantizedProduct(gradient.rowwise(), Product.INPUT_GRADIENT, null, term, present, pass);
            }
            LowRankAdapter adapter = sites.adapter();
            boolean addsToSum = split.gathersInput();
            if (adapter != null && !addsToSum) {
                adapter.addInputGradient(term, x.adapted, pass);
            }
            split.sumInputGradient(term, dx, pass);
            if (adapter != null && addsToSum) {
                adapter.addInputGradient(dx, x.adapted, pass);
            }
        }
    }

    /** Enqueues the gradients of weight, bias and adapters. */
    void parameterGradients(Operand x, Pass pass) {
        LowRankAdapter adapter = sites.adapter();
        if (adapter != null) {
            adapter.parameterGradients(input.whole(x, pass), gradient.own(), x.adapted, pass);
        }
        if (weight.isFrozen() || x.isQuantized()) {
            if (!weight.isFrozen()) {
                quantizedWeightGradient(x, pass);
            }
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
        Quantizers present = gradient.quantizers();
        if (present != null) {
            Output output = pass.nextGradient(weight);
            MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan())
                    .product(
                            gradient.columnwise(),
                            input.kept(x, pass),
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
        QuantizedTensor read = input.kept(x, pass);
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
}
