package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.QuantizerSite.Role;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * The parameters that layers have declared, before memory is allocated: a model is described first and allocated afterwards.
 *
 * <p>{@link #child} adds a prefix to names. {@link #group} does so, too, and makes the parameters that are declared there one group, whose
 * weights lie side by side in memory, so that they can be gathered, recomputed and saved together.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="plan"}
 *
 * <p>A parameter has one memory, so each rank makes a plan and layers of its own, inside the body of {@code Ranks.run} if ranks are threads.
 * All layers are made before parameters are allocated: nothing can be declared while they have memory.
 *
 * <p>Threading: one thread at a time.
 */
public final class ModelPlan {
    private enum Grouping {
        ON,
        /** Groups only add a prefix to names. */
        OFF
    }

    /** What a rank's gradients mean for parameters that are declared here. */
    private enum Gradients {
        /** The gradient of the rank's part, or the same gradient on all tensor-parallel ranks. */
        WHOLE,
        /** A term of a sum over tensor-parallel ranks. */
        PARTIAL
    }

    private final Grouping grouping;
    private final String prefix;
    private final String group;
    private final Gradients gradients;
    /** The declarations of all parts of the plan. */
    private final Declarations declared;

    /** Begins an empty plan. */
    public ModelPlan() {
        this(TensorParallel.none());
    }

    /** Begins an empty plan of the part of a model that one of several tensor-parallel ranks has. */
    public ModelPlan(TensorParallel tensorParallel) {
        this(Grouping.ON, Checks.given("tensorParallel", tensorParallel), ContextParallel.none());
    }

    /** Begins an empty plan of a model of which each of several context-parallel ranks computes a part of the tokens. */
    public ModelPlan(ContextParallel contextParallel) {
        this(Grouping.ON, TensorParallel.none(), Checks.given("contextParallel", contextParallel));
    }

    /**
     * Begins an empty plan of the part of a model that one of several tensor-parallel ranks has, where each of several context-parallel
     * ranks computes a part of the tokens. Attention's heads are split among all of these ranks. With {@link
     * TensorParallel#withSequenceParallel} the tensor-parallel ranks also split the tokens of their context-parallel rank between branches.
     */
    public ModelPlan(TensorParallel tensorParallel, ContextParallel contextParallel) {
        this(
                Grouping.ON,
                Checks.given("tensorParallel", tensorParallel),
                Checks.given("contextParallel", contextParallel));
    }

    private ModelPlan(Grouping grouping, TensorParallel tensorParallel, ContextParallel contextParallel) {
        this(grouping, "", "", Gradients.WHOLE, new Declarations(tensorParallel, contextParallel));
    }

    private ModelPlan(Grouping grouping, String prefix, String group, Gradients gradients, Declarations declared) {
        this.grouping = grouping;
        this.prefix = prefix;
        this.group = group;
        this.gradients = gradients;
        this.declared = declared;
    }

    /** Begins an empty plan whose {@link #group} only adds a prefix, like {@link #child}: all parameters form one group. */
    public static ModelPlan ungrouped() {
        return new ModelPlan(Grouping.OFF, TensorParallel.none(), ContextParallel.none());
    }

    /**
     * For sharding: returns a plan of some of this plan's parameters, the same objects, and of the quantizer sites of their groups: the
     * part of the model that one stage of a pipeline has. Declare nothing more in either plan after this: it would belong to one of them alone.
     *
     * @param chosen which parameters
     * @param kind parameters of one group with different kinds form different groups, such as those that other stages also have, so that
     *     their memory layout is the same on all stages
     */
    public ModelPlan part(Predicate<Parameter> chosen, Function<Parameter, ?> kind) {
        Checks.given("chosen", chosen, "kind", kind);
        return new ModelPlan(Grouping.ON, "", "", Gradients.WHOLE, declared.part(chosen, kind));
    }

    /**
     * Returns a plan of the same parameters in smaller groups: parameters of one group with different kinds form different groups. Ranks
     * that shard groups then gather and sum less at a time, in more collectives. A group must contain all parameters that one layer reads,
     * such as a branch of a {@code TransformerLayer}, or its norm. Gradients of a branch's products are complete before backward comes to the
     * branch below, and before it computes the gradient of the branch's input; those of its norm only at the end of the layer. Declare
     * nothing more in either plan after this: it would belong to one of them alone.
     *
     * {@snippet file="dev/chagres/sharding/FullyShardedTest.java" region="regrouped"}
     *
     * @param kind of a parameter, compared within its group by {@code equals}; its text becomes part of the new group's name
     * @throws NullPointerException when a parameter has none
     */
    public ModelPlan regrouped(Function<Parameter, ?> kind) {
        return part(parameter -> true, kind);
    }

    /**
     * Freezes all parameters that are declared in the whole plan, but for those that {@code trainable} trains: they get no gradient memory and
     * no state of an optimizer, and no product is computed for their gradients. {@link Parameters#allocate} checks that each pattern means one.
     *
     * @throws IllegalStateException when parameters are declared already
     */
    public void train(Trainable trainable) {
        declared.train(Checks.given("trainable", trainable));
    }

    /**
     * Gives layers that are made of the whole plan low-rank adapters, and freezes all other parameters but {@link LoraConfig#trained}. {@link
     * Parameters#allocate} checks that each target means a product.
     *
     * @throws IllegalStateException when parameters are declared already
     */
    public void adapt(LoraConfig config) {
        declared.adapt(Checks.given("config", config));
    }

    /**
     * For authors of layers: returns the adapters of a product.
     *
     * @param product its name behind this part's prefix; empty for the name of this part
     * @return null where the product has none
     */
    public @Nullable LoraConfig adapter(String product) {
        return declared.lora(Checks.given("product", product).isEmpty() ? name() : prefix + product);
    }

    /**
     * For authors of adapters: declares a parameter that is trained although others are frozen.
     *
     * @param name behind this part's prefix
     * @param split the part that this rank keeps; null for all of {@code shape}
     * @throws IllegalArgumentException as {@link #declare(String, Initializer, ParameterSplit)}
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declareAdapter(String name, Initializer initializer, Shape shape, @Nullable ParameterSplit split) {
        Checks.given("shape", shape);
        if (split != null) {
            ensureOwn(split);
        }
        Shape own = split == null ? shape : split.shape();
        return declare(name, initializer, null, own, split, true);
    }

    /** Returns the part of this plan whose names begin with {@code name} and a dot, in the same group. */
    public ModelPlan child(String name) {
        return new ModelPlan(grouping, prefix + Checks.given("name", name) + ".", group, gradients, declared);
    }

    /** Returns the part of this plan whose names begin with {@code name} and a dot, as a group of its own. */
    public ModelPlan group(String name) {
        String full = prefix + Checks.given("name", name);
        return new ModelPlan(grouping, full + ".", grouping == Grouping.ON ? full : group, gradients, declared);
    }

    /** Returns the ranks among which layers that are declared here are split. */
    public TensorParallel tensorParallel() {
        return declared.tensorParallel;
    }

    /** Returns the ranks that split the tokens which layers declared here read. */
    public ContextParallel contextParallel() {
        return declared.contextParallel;
    }

    /**
     * For authors of layers: returns this part for parameters that every tensor-parallel rank has whole, but of whose gradient each rank
     * computes a term, such as a norm of its heads. {@link Parameters#completeGradients} sums the terms.
     */
    public ModelPlan withPartialGradients() {
        Gradients summed = tensorParallel().isSplit() ? Gradients.PARTIAL : Gradients.WHOLE;
        return new ModelPlan(grouping, prefix, group, summed, declared);
    }

    /** Returns the name of this part without the trailing dot, such as {@code layers.0}; empty for the whole plan. */
    public String name() {
        return prefix.isEmpty() ? "" : prefix.substring(0, prefix.length() - 1);
    }

    /**
     * Returns this part for layers that read a rank's part of the tokens, such as a norm between {@code TokenScatter} and {@code
     * TokenGather}: if ranks are sequence-parallel, each computes a term of the gradients. Layers that are split themselves, such as a
     * {@code TransformerLayer}, do this for their own norms.
     */
    public ModelPlan forTokenParts() {
        return tensorParallel().isSequenceParallel() ? withPartialGradients() : this;
    }

    /**
     * Declares a parameter of the model's type.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException when the name is taken, a size is not positive, or there would be more elements than
     *     bytes can be counted of
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declare(String name, Initializer initializer, long... sizes) {
        return declare(name, initializer, null, new Shape(Checks.given("sizes", sizes)), null);
    }

    /**
     * For authors of layers: declares a parameter of the model's type of which this rank keeps a part. Its initial values are those of that
     * part of the whole parameter.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException as {@link #declare(String, Initializer, long...)}, or when the split is one among other ranks
     *     than the plan's
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declare(String name, Initializer initializer, ParameterSplit split) {
        ensureOwn(split);
        return declare(name, initializer, null, split.shape(), split);
    }

    /**
     * For authors of layers: declares a parameter of type {@code dtype} of which this rank keeps a part.
     *
     * @param name behind this part's prefix
     * @param dtype FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException as {@link #declareAs(DType, String, Initializer, long...)}, or when the split is one among other
     *     ranks than the plan's
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declareAs(DType dtype, String name, Initializer initializer, ParameterSplit split) {
        ensureOwn(split);
        return declare(name, initializer, floats(dtype), split.shape(), split);
    }

    /**
     * For authors of layers: declares a weight of the model's type whose gradient only matrix products write: see {@link
     * Parameter#isWrittenByProducts}.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException as {@link #declare(String, Initializer, long...)}
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declareProductWeight(String name, Initializer initializer, long... sizes) {
        return ofProducts(declare(name, initializer, sizes));
    }

    /**
     * For authors of layers: declares such a weight of which this rank keeps a part.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException as {@link #declare(String, Initializer, ParameterSplit)}
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declareProductWeight(String name, Initializer initializer, ParameterSplit split) {
        return ofProducts(declare(name, initializer, split));
    }

    private static Parameter ofProducts(Parameter weight) {
        weight.writeByProducts();
        return weight;
    }

    private void ensureOwn(ParameterSplit split) {
        TensorParallel own = tensorParallel();
        if (Checks.given("split", split).rank() != own.rank() || split.ranks() != own.size()) {
            throw new IllegalArgumentException("split: expected the part of " + own + ", got that of rank "
                    + split.rank() + " of " + split.ranks());
        }
    }

    /**
     * Declares a parameter of type {@code dtype}, such as a norm's weight in FLOAT32 in a model of BFLOAT16.
     *
     * @param name behind this part's prefix
     * @param dtype FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException when the name is taken, the type is no float, a size is not positive, or there would
     *     be more elements than bytes can be counted of
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public Parameter declareAs(DType dtype, String name, Initializer initializer, long... sizes) {
        return declare(name, initializer, floats(dtype), new Shape(Checks.given("sizes", sizes)), null);
    }

    private static DType floats(DType dtype) {
        if (!Checks.given("dtype", dtype).isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        return dtype;
    }

    private Parameter declare(
            String name, Initializer initializer, @Nullable DType dtype, Shape shape, @Nullable ParameterSplit split) {
        return declare(name, initializer, dtype, shape, split, false);
    }

    private Parameter declare(
            String name,
            Initializer initializer,
            @Nullable DType dtype,
            Shape shape,
            @Nullable ParameterSplit split,
            boolean isAdapter) {
        String full = prefix + Checks.given("name", name);
        Checks.given("initializer", initializer);
        Shape whole = split == null ? shape : split.whole(); // With an uneven split a rank may have nothing.
        for (long size : whole.sizes()) {
            if (size < 1) {
                throw new IllegalArgumentException(full + ": expected positive sizes, got " + whole);
            }
        }
        Parameter parameter =
                new Parameter(full, shape, initializer, dtype, split, split == null && gradients == Gradients.PARTIAL);
        declared.add(group, parameter);
        declared.choose(parameter, isAdapter);
        return parameter;
    }

    /**
     * Declares a place where a recipe may cast a tensor other than a weight.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException when the role is that of a weight
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public QuantizerSite quantizer(String name, Role role) {
        if (Checks.given("role", role) == Role.WEIGHT) {
            throw new IllegalArgumentException(
                    "role: expected INPUT or GRADIENT, got WEIGHT; name the parameter instead");
        }
        return declared.add(new QuantizerSite(
                prefix + Checks.given("name", name),
                group,
                role,
                declared.sites().size(),
                null));
    }

    /**
     * Declares a place where a recipe may cast {@code weight}.
     *
     * @throws IllegalArgumentException when it is no matrix
     * @throws IllegalStateException while parameters of the plan have memory
     */
    public QuantizerSite quantizer(String name, Parameter weight) {
        if (Checks.given("weight", weight).shape().rank() != 2) {
            throw new IllegalArgumentException("weight: expected a matrix, got " + weight);
        }
        return declared.add(QuantizerSite.ofWeight(
                prefix + Checks.given("name", name), group, declared.sites().size(), weight));
    }

    /** Returns the places of the whole plan where a recipe may cast, in the order of their declaration. */
    public List<QuantizerSite> quantizers() {
        return declared.sites();
    }

    /** Freezes everything declared so far under this part's prefix: see {@link Parameter#freeze}. */
    public void freeze() {
        for (Parameter parameter : parameters()) {
            parameter.freeze();
        }
    }

    /**
     * Makes the length of every group a multiple of {@code ranks} aligned parts, so that it can be cut into as many equal
     * shards.
     *
     * @throws IllegalArgumentException when {@code ranks} is not positive
     */
    public void padGroups(int ranks) {
        Checks.atLeastOne("ranks", ranks);
        declared.padFor(ranks);
    }

    int ranks() {
        return declared.ranks();
    }

    void checkChoice() {
        declared.checkChoice();
    }

    /**
     * Makes each parameter of the whole plan begin at a multiple of {@code elements} elements of its group, also where ranks shard the
     * group. So neighbours that an optimizer's states of eight bits scale together belong to one parameter and to one rank.
     *
     * @param elements a power of two from 16 on; 16 without this call
     * @throws IllegalArgumentException when it is none
     */
    public void alignParameters(int elements) {
        if (elements < ParameterLayout.ALIGNMENT || Integer.bitCount(elements) != 1) {
            throw new IllegalArgumentException(
                    "elements: expected a power of two from " + ParameterLayout.ALIGNMENT + " on, got " + elements);
        }
        declared.alignTo(elements);
    }

    int alignment() {
        return declared.alignment();
    }

    /**
     * Keeps gradients that {@linkplain Parameter#isWrittenByProducts only matrix products write} in {@code dtype}, where the weight has this
     * type: two bytes an element instead of four. Products round them, and round the sum anew for each micro-batch, as PyTorch does with
     * weights of 16 bits; with many micro-batches FLOAT32 loses less. Others stay FLOAT32. For parameters of one rank, or of tensor-parallel
     * ranks; strategies have a {@code reduceType} instead. Optimizers but {@code Adafactor} and {@code Muon} take such gradients.
     *
     * {@snippet file="dev/chagres/parameter/ProductGradientVectorsTest.java" region="productGradients"}
     *
     * @param dtype FLOAT32, which is without this call, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException when it is another type
     */
    public void productGradients(DType dtype) {
        declared.productGradients(floats(dtype));
    }

    DType productGradients() {
        return declared.productGradients();
    }

    PlanClaim claim() {
        return declared.claim;
    }

    /** Returns what was declared so far under this part's prefix, in this order. */
    public List<Parameter> parameters() {
        return declared.parameters(prefix);
    }

    List<Parameter> ofModel() {
        return declared.ofModel();
    }

    /** Returns the groups of the whole plan by name, in the order in which they were begun. */
    public Map<String, List<Parameter>> groups() {
        return declared.groups();
    }

    /** Returns the number of elements of {@link #parameters}. */
    public long count() {
        return parameters().stream().mapToLong(p -> p.shape().count()).sum();
    }

    /** Returns a table of the groups: name, parameters, elements. */
    @Override
    public String toString() {
        return declared.toString();
    }
}
