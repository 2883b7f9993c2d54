package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.adapter.LowRankAdapter;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.ContextPool;
import dev.chagres.pass.Layer;
import dev.chagres.pass.LayerSummary;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedContext;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = x W^T + b}, or {@code y = x W^T} without bias.
 *
 * <p>Parameters: {@code weight} [out, in], as the initializer says; {@code bias} [out], zeros, where {@link Bias#PRESENT}.
 *
 * <p>Where the pass has a recipe ({@link Pass#autocast}) and both sizes of the weight are multiples of 16, its three products
 * run in eight bits: input, weight and the gradient of the output are cast; the bias and all results keep their types.
 *
 * <p>In a plan of {@link dev.chagres.parallel.TensorParallel} ranks a {@link ParallelMode} says whether and how they split the layer.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Linear}; {@code ops_matrix_product}.
 */
public final class Linear extends Layer {
    private static final class Input extends SavedContext {
        private final Operand x = new Operand("the input");
    }

    /** The names of the sections of an output that has one. */
    static final List<String> UNNAMED = List.of("");

    private final long inputs;
    private final long outputs;
    private final Parameter weight;
    private final @Nullable Parameter bias;
    private final LinearSplit split;
    private final LinearSites sites;
    private final QuantizedInput input;
    private final QuantizedGradient outputGradient;
    private final LinearProducts products;
    private final ContextPool<Input> saved = new ContextPool<>(this, Input::new);

    /**
     * Declares weight and bias in {@code plan}.
     *
     * @throws IllegalArgumentException when a size is not positive
     */
    public Linear(long inputs, long outputs, Initializer initializer, ModelPlan plan) {
        this(inputs, outputs, Bias.PRESENT, initializer, plan);
    }

    /**
     * Declares the weight in {@code plan} and, where it is present, the bias.
     *
     * @throws IllegalArgumentException when a size is not positive
     */
    public Linear(long inputs, long outputs, Bias bias, Initializer initializer, ModelPlan plan) {
        this(inputs, outputs, bias, ParallelMode.NONE, initializer, plan);
    }

    /**
     * Declares in {@code plan} this rank's part of the weight and, where it is present, of the bias.
     *
     * @param inputs columns of the whole input; with {@link ParallelMode#ROW} this rank reads a part of them
     * @param outputs columns of the whole output; with {@link ParallelMode#COLUMN} this rank computes a part of them
     * @throws IllegalArgumentException when a size is not positive, or the plan's tensor-parallel ranks do not divide the columns that are
     *     split
     */
    public Linear(long inputs, long outputs, Bias bias, ParallelMode mode, Initializer initializer, ModelPlan plan) {
        Checks.given("bias", bias, "initializer", initializer, "mode", mode);
        if (Checks.given("plan", plan).tensorParallel().isSequenceParallel() && mode != ParallelMode.NONE) {
            throw new IllegalArgumentException(
                    "mode: " + plan.name() + " expected NONE where ranks are sequence-parallel,"
                            + " for a Linear gives as many tokens as it reads, got " + mode + "; LayerNormMlp and"
                            + " MultiheadAttention split products there");
        }
        Checks.atLeastOne("inputs", inputs);
        Checks.atLeastOne("outputs", outputs);
        LinearSplit split = LinearSplit.of(mode, inputs, outputs, plan);
        this(split.declareWeight(initializer, plan), split, bias, UNNAMED, plan);
    }

    /** Makes a {@link ParallelMode#ROW} layer at the end of a branch, whose output may be split by tokens. */
    static Linear ofRows(long inputs, long outputs, Bias bias, Initializer initializer, ModelPlan plan) {
        LinearSplit split = LinearSplit.of(ParallelMode.ROW, inputs, outputs, plan);
        return new Linear(split.declareWeight(initializer, plan), split, bias, UNNAMED, plan);
    }

    /**
     * Makes a {@link ParallelMode#COLUMN} layer whose outputs have sections of these sizes; a rank has a part of each section.
     *
     * @param names of the sections, by which they are targets of adapters
     */
    static Linear ofSections(
            long inputs, List<String> names, List<Long> sections, Bias bias, Initializer initializer, ModelPlan plan) {
        LinearSplit split = LinearSplit.ofSections(inputs, sections, plan);
        return new Linear(split.declareWeight(initializer, plan), split, bias, names, plan);
    }

    /** {@code names}: of the sections of the outputs; empty without adapters. */
    private Linear(Parameter weight, LinearSplit split, Bias bias, List<String> names, ModelPlan plan) {
        super(plan.name());
        inputs = weight.shape().size(1);
        outputs = weight.shape().size(0);
        this.weight = weight;
        this.split = split;
        this.bias = bias == Bias.PRESENT ? split.declareBias(plan) : null;
        LowRankAdapter adapter = names.isEmpty() ? null : split.declareAdapter(names, plan);
        if (adapter != null && !weight.isFrozen()) {
            throw new IllegalArgumentException("trained: expected no weight that has adapters, got " + weight.name());
        }
        sites = LinearSites.of(weight, this.bias, split, adapter, plan);
        input = new QuantizedInput(sites);
        outputGradient = new QuantizedGradient(sites);
        products = new LinearProducts(sites, input, outputGradient);
    }

    /**
     * Multiplies by a weight that another layer declared, such as an embedding's table; only the bias is declared in
     * {@code plan}. The two layers' gradients of the weight add up.
     *
     * <p>Of the table of {@link Embedding#vocabularyParallel} each tensor-parallel rank has some rows. A rank then reads all tokens, which
     * must be the same on all ranks, computes its own columns of the output, and sums the input's gradient over the ranks.
     * Sequence-parallel ranks put a {@link TokenGather} before the layer.
     *
     * @param weight [out, in], or the rows of it that this rank of {@code plan} has
     * @throws IllegalArgumentException when the weight is no matrix, or is split by columns or among other ranks than those of the plan
     */
    public static Linear tied(Parameter weight, ModelPlan plan) {
        return tied(weight, Bias.PRESENT, plan);
    }

    /**
     * Multiplies by a weight that another layer declared, as {@link #tied(Parameter, ModelPlan)}; without bias nothing is
     * declared in {@code plan}.
     *
     * @param weight [out, in], or the rows of it that this rank of {@code plan} has
     * @throws IllegalArgumentException when the weight is no matrix, or is split by columns or among other ranks than those of the plan
     */
    public static Linear tied(Parameter weight, Bias bias, ModelPlan plan) {
        if (Checks.given("weight", weight).shape().rank() != 2) {
            throw new IllegalArgumentException("weight: expected a matrix [out, in], got " + weight);
        }
        return new Linear(
                weight,
                LinearSplit.tied(weight, Checks.given("plan", plan)),
                Checks.given("bias", bias),
                List.of(),
                plan);
    }

    /** Returns how the layer is split among the plan's tensor-parallel ranks. */
    public ParallelMode parallelMode() {
        return split.mode();
    }

    /** Returns the weight [out, in], or this rank's part of it. */
    public Parameter weight() {
        return weight;
    }

    /** Returns whether a bias is added. */
    public boolean hasBias() {
        return bias != null;
    }

    /**
     * Returns the bias [out], or this rank's part of it.
     *
     * @throws IllegalStateException when there is none
     */
    public Parameter bias() {
        Parameter present = bias;
        if (present == null) {
            throw new IllegalStateException(
                    name() + " has no bias, for it was made with Bias.ABSENT; ask hasBias() first");
        }
        return present;
    }

    /** Returns the parameters and their places of a recipe, for layers that combine products with other kernels. */
    LinearSites sites() {
        return sites;
    }

    /** Returns what says how the input is written and makes an operand of it, for the same layers. */
    QuantizedInput input() {
        return input;
    }

    /** Returns what does the same for the gradient of the output, for the same layers. */
    QuantizedGradient outputGradient() {
        return outputGradient;
    }

    /** Returns the three products, for the same layers. */
    LinearProducts products() {
        return products;
    }

    /** Makes {@code operand} of x and enqueues the product, for the same layers, which save the operand. */
    void product(Tensor x, Operand operand, Tensor y, Pass pass) {
        input.finish(x, operand, pass.isSaving() ? pass.kept() : null, pass);
        products.product(operand, y, pass);
    }

    /** Begins the gradients of that product with dy, and enqueues those of the parameters. */
    void parameterGradients(Tensor dy, Operand x, Pass pass) {
        outputGradient.finish(dy, x, pass);
        products.parameterGradients(x, pass);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        Input record = saved.take();
        product(x, record.x, y, pass);
        saved.keep(record, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        Operand x = saved.pop(pass).x;
        parameterGradients(dy, x, pass);
        pass.calls().gradientsWritten();
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
        LowRankAdapter adapter = sites.adapter();
        return !weight.isFrozen() || sites.learnsBias() || (adapter != null && adapter.requiresGradient());
    }

    @Override
    public void checkInput(Tensor x) {
        Checks.given("x", x);
        DType type = sites.dtype();
        if (x.size(1) != inputs || x.dtype() != type) {
            throw new IllegalArgumentException(
                    "x: " + name() + " expected " + type + "[T, " + inputs + "], got " + Checks.describe(x));
        }
        checkHere(this, weight, x);
        if (bias != null) {
            checkBias(bias, type, x);
        }
    }

    private void checkBias(Parameter added, DType type, Tensor x) {
        checkHere(this, added, x);
        DType dtype = added.unreadWeight().dtype();
        if (dtype != type) {
            throw new IllegalArgumentException(name() + ": expected weight and bias of one type, got " + weight.name()
                    + " of " + type + " and " + added.name() + " of " + dtype);
        }
    }

    @Override
    public String summary() {
        return new LayerSummary()
                .with("in", inputs)
                .with("out", outputs)
                .withUnlessUsual("bias", bias == null ? Bias.ABSENT : Bias.PRESENT, Bias.PRESENT)
                .withUnlessUsual("parallel", split.isSplit() ? split.mode() : ParallelMode.NONE, ParallelMode.NONE)
                .toString();
    }

    @Override
    protected String explanation(Tensor x, Pass pass) {
        return name() + ": " + sites.explain(pass)
                + split.explain(
                        bias != null,
                        sites.explainGathered(x.size(0), pass),
                        sites.explainGatheredAgain(x.size(0), pass))
                + (sites.adapter() == null ? "" : sites.adapter().explain());
    }
}
