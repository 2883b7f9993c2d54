package dev.chagres.layer;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.ops.RowSum;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;

/**
 * {@code y = x W^T + b}.
 *
 * <p>Parameters: {@code weight} [out, in], as the initializer says; {@code bias} [out], zeros.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Linear}; {@code nvte_cublas_gemm_v2}.
 */
public final class Linear extends Layer {
    private static final class Input extends Saved {
        private final Kept x = new Kept("the input");
    }

    private final long inputs;
    private final long outputs;
    private final Parameter weight;
    private final Parameter bias;
    private final SavedPool<Input> saved = new SavedPool<>(this, Input::new);

    /**
     * Declares the parameters in {@code plan}.
     *
     * @throws IllegalArgumentException when a size is not positive
     */
    public Linear(long inputs, long outputs, Initializer initializer, ModelPlan plan) {
        Checks.given("initializer", initializer);
        super(Checks.given("plan", plan).name());
        this.inputs = inputs;
        this.outputs = outputs;
        weight = plan.declare("weight", initializer, outputs, inputs);
        bias = plan.declare("bias", Initializer.zeros(), outputs);
    }

    private Linear(Parameter weight, ModelPlan plan) {
        super(plan.name());
        inputs = weight.shape().size(1);
        outputs = weight.shape().size(0);
        this.weight = weight;
        bias = plan.declare("bias", Initializer.zeros(), outputs);
    }

    /**
     * Multiplies by a weight that another layer declared, such as an embedding's table; only the bias is declared in
     * {@code plan}. The two layers' gradients of the weight add up.
     *
     * @param weight [out, in]
     * @throws IllegalArgumentException when the weight is no matrix
     */
    public static Linear tied(Parameter weight, ModelPlan plan) {
        if (Checks.given("weight", weight).shape().rank() != 2) {
            throw new IllegalArgumentException("weight: expected a matrix [out, in], got " + weight);
        }
        Checks.given("plan", plan);
        return new Linear(weight, plan);
    }

    /** Returns the weight [out, in]. */
    public Parameter weight() {
        return weight;
    }

    /** Returns the bias [out]. */
    public Parameter bias() {
        return bias;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        product(x, y, pass.stream());
        Input input = saved.push(pass);
        if (input != null) {
            input.x.set(x);
        }
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Tensor x = saved.pop(pass).x.get();
        parameterGradients(dy, x, pass);
        if (x.requiresGradient()) {
            inputGradient(dy, dx, pass.stream());
        }
    }

    /** Enqueues {@code y = x W^T + b}. */
    void product(Tensor x, Tensor y, Stream stream) {
        Gemm.gemmBias(x, Transpose.NO, weight.weight(), Transpose.YES, bias.weight(), y, stream);
    }

    /** Enqueues {@code dx = dy W}. */
    void inputGradient(Tensor dy, Tensor dx, Stream stream) {
        Gemm.gemm(dy, Transpose.NO, weight.weight(), Transpose.NO, dx, Output.OVERWRITE, stream);
    }

    /** Enqueues the gradients of weight and bias from dy [T, out] and x [T, in]. */
    void parameterGradients(Tensor dy, Tensor x, Pass pass) {
        boolean both = !weight.isFrozen() && !bias.isFrozen();
        if (both && x.size(0) > 0 && !weight.hasGradient() && !bias.hasGradient()) {
            pass.nextGradient(weight);
            pass.nextGradient(bias);
            Gemm.gemmBiasGradient(dy, x, Transpose.NO, bias.gradient(), weight.gradient(), pass.stream());
            return;
        }
        // The product's epilogue can write a bias gradient, but not add to one.
        if (!weight.isFrozen()) {
            Output output = pass.nextGradient(weight);
            Gemm.gemm(dy, Transpose.YES, x, Transpose.NO, weight.gradient(), output, pass.stream());
        }
        if (!bias.isFrozen()) {
            RowSum.rowSum(dy, bias.gradient(), pass.nextGradient(bias), pass.stream());
        }
    }

    @Override
    public long outputColumns(long inputColumns) {
        return outputs;
    }

    @Override
    public boolean requiresGradient() {
        return !weight.isFrozen() || !bias.isFrozen();
    }

    @Override
    protected void checkInput(Tensor x) {
        Tensor present = weight.weight();
        if (x.size(1) != inputs || x.dtype() != present.dtype()) {
            throw new IllegalArgumentException(
                    "x: " + name() + " expected " + present.dtype() + "[T, " + inputs + "], got " + Checks.describe(x));
        }
        checkHere(this, weight, x);
        checkHere(this, bias, x);
        if (bias.weight().dtype() != present.dtype()) {
            throw new IllegalArgumentException(name() + ": expected weight and bias of one type, got " + weight.name()
                    + " of " + present.dtype() + " and " + bias.name() + " of "
                    + bias.weight().dtype());
        }
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return name()
                + ": te_cublas_gemm_v2, the bias in its epilogue, and so the bias gradient in the first backward of a"
                + " step; later ones add it by ops_row_sum";
    }
}
