package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;

/**
 * {@code y = x W^T + b}.
 *
 * <p>Parameters: {@code weight} [out, in], as the initializer says; {@code bias} [out], zeros.
 *
 * <p>Where the pass has a recipe ({@link Pass#autocast}) and both sizes of the weight are multiples of 16, its three products
 * run in eight bits: input, weight and the gradient of the output are cast; the bias and all results keep their types.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Linear}; {@code nvte_cublas_gemm_v2}.
 */
public final class Linear extends Layer {
    private static final class Input extends Saved {
        private final Operand x = new Operand("the input");
    }

    private final long inputs;
    private final long outputs;
    private final Parameter weight;
    private final Parameter bias;
    private final LinearProducts products;
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
        products = new LinearProducts(weight, bias, plan);
    }

    private Linear(Parameter weight, ModelPlan plan) {
        super(plan.name());
        inputs = weight.shape().size(1);
        outputs = weight.shape().size(0);
        this.weight = weight;
        bias = plan.declare("bias", Initializer.zeros(), outputs);
        products = new LinearProducts(weight, bias, plan);
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

    /** Returns its three products, for layers that put something between them. */
    LinearProducts products() {
        return products;
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Input input = saved.take();
        products.prepare(x, input.x, pass.isSaving() ? pass.kept() : null, pass);
        products.product(input.x, y, pass);
        saved.keep(input, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Operand x = saved.pop(pass).x;
        products.begin(dy, x, pass);
        products.parameterGradients(x, pass);
        if (x.learns()) {
            products.inputGradient(x, dx, pass);
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
        return name() + ": " + products.explain(pass);
    }
}
