package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.MatrixProduct;
import dev.chagres.internal.TensorCell;

/**
 * {@code y = x W^T + b}.
 *
 * <p>Parameters: {@code weight} [out, in], as the initializer says; {@code bias} [out], zeros.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Linear}; {@code nvte_cublas_gemm_v2}.
 */
public final class Linear {
    private final long inputs;
    private final long outputs;
    private final Parameter weight;
    private final Parameter bias;

    /**
     * Declares the parameters in {@code plan}.
     *
     * @throws IllegalArgumentException when a size is not positive
     */
    public Linear(long inputs, long outputs, Initializer initializer, ParameterPlan plan) {
        this.inputs = inputs;
        this.outputs = outputs;
        weight = plan.declare("weight", initializer, outputs, inputs);
        bias = plan.declare("bias", Initializer.zeros(), outputs);
    }

    private Linear(Parameter weight, ParameterPlan plan) {
        inputs = weight.shape().size(1);
        outputs = weight.shape().size(0);
        this.weight = weight;
        bias = plan.declare("bias", Initializer.zeros(), outputs);
    }

    /**
     * Multiplies by a weight that another layer declared, such as an embedding's table; only the bias is declared in
     * {@code plan}. The two layers' gradients add up when the one whose backward comes second is told {@link
     * Accumulation#ADD}.
     *
     * @param weight [out, in]
     * @throws IllegalArgumentException when the weight is no matrix
     */
    public static Linear tied(Parameter weight, ParameterPlan plan) {
        if (weight.shape().rank() != 2) {
            throw new IllegalArgumentException("weight: expected a matrix [out, in], got " + weight);
        }
        return new Linear(weight, plan);
    }

    /**
     * What backward needs.
     *
     * @param layer whose forward this is of
     * @param input x
     * @param output y
     */
    public record Saved(Linear layer, Tensor input, Tensor output) {}

    /** Returns the weight [out, in]. */
    public Parameter weight() {
        return weight;
    }

    /** Returns the bias [out]. */
    public Parameter bias() {
        return bias;
    }

    /**
     * Enqueues the product.
     *
     * @param x [T, in], in the type of the weights
     * @param scope receives y, [T, out]
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Saved forward(Tensor x, Scope scope) {
        TensorCell input = Checks.matrix(scope, "x", x, weight.weight(scope).dtype(), inputs);
        Tensor y = scope.tensor(x.dtype(), input.size(0), outputs);
        forward(x, y, scope);
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.layer != this || saved.input != x || saved.output != y) {
            saved = new Saved(this, x, y);
        }
        return scope.keep(saved);
    }

    /** Enqueues the product into {@code y}, [T, out]; the caller has checked both. */
    void forward(Tensor x, Tensor y, Scope scope) {
        product(scope)
                .forwardBias(
                        scope.stream(),
                        x.cell(),
                        weight.weight().cell(),
                        bias.weight().cell(),
                        y.cell());
    }

    /**
     * Enqueues the gradients: of the parameters into {@link Parameter#gradient()}, and of the input.
     *
     * @param dy gradient of the output, [T, out]
     * @param scope receives the gradient of the input, [T, in]
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        Checks.like(scope, "dy", dy, saved.output.cell());
        Tensor dx = scope.like(saved.input);
        parameterGradients(dy, saved.input, accumulation, scope.stream());
        inputGradient(dy, dx, scope);
        return dx;
    }

    /** Checks that a record is of this layer and still holds what its forward left there. */
    void check(Saved saved, Scope scope) {
        weight.checkOwner(saved.layer.weight);
        TensorCell input = Checks.matrix(
                scope, "saved.input", saved.input, weight.weight(scope).dtype(), inputs);
        Checks.matrix(scope, "saved.output", saved.output, input.dtype(), input.size(0), outputs);
    }

    /** Enqueues the gradients of weight and bias from dy [T, out] and x [T, in]. */
    void parameterGradients(Tensor dy, Tensor x, Accumulation accumulation, Stream stream) {
        MatrixProduct product = stream.device().state().calls().matrixProduct();
        TensorCell dweight = weight.gradient().cell();
        TensorCell dbias = bias.gradient().cell();
        if (x.size(0) == 0) {
            // TE refuses a product that sums over nothing.
            if (accumulation == Accumulation.OVERWRITE) {
                weight.gradient().zero(stream);
                bias.gradient().zero(stream);
            }
        } else if (accumulation == Accumulation.OVERWRITE) {
            product.weightAndBiasGradient(stream, x.cell(), dy.cell(), dweight, dbias);
        } else {
            // The product's epilogue can write a bias gradient, but not add to one.
            product.weightGradient(stream, x.cell(), dy.cell(), dweight, accumulation.beta());
            Elementwise.rowSum(stream, dy.cell(), dbias, accumulation.beta());
        }
    }

    /** Enqueues {@code dx = dy W}. */
    void inputGradient(Tensor dy, Tensor dx, Scope scope) {
        product(scope).inputGradient(scope.stream(), dy.cell(), weight.weight().cell(), dx.cell());
    }

    private static MatrixProduct product(Scope scope) {
        return scope.device().state().calls().matrixProduct();
    }
}
