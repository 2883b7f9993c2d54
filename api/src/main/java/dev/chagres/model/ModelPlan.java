package dev.chagres.model;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.model.QuantizerSite.Role;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The parameters that layers have declared, before any memory is taken: a model is described first and placed afterwards.
 *
 * <p>{@link #child} gives names a prefix. {@link #group} does so, too, and says that what is declared there belongs together:
 * its weights lie side by side in memory, so that they can be gathered, recomputed and saved as one.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="plan"}
 *
 * <p>Threading: one thread at a time.
 */
public final class ModelPlan {
    /** Whose bytes can be counted, with some left to align each parameter. */
    private static final long MOST_ELEMENTS = Long.MAX_VALUE / 16;

    private enum Grouping {
        ON,
        OFF
    }

    /** What all parts of one plan share. */
    private static final class Shared {
        private final Grouping grouping;
        private final Map<String, List<Parameter>> groups = new LinkedHashMap<>();
        private final List<Parameter> all = new ArrayList<>();
        private final Set<String> names = new HashSet<>();
        private final List<QuantizerSite> sites = new ArrayList<>();
        private final TensorParallel tensorParallel;
        private final ContextParallel contextParallel;
        private int ranks = 1;

        private Shared(Grouping grouping, TensorParallel tensorParallel, ContextParallel contextParallel) {
            this.grouping = grouping;
            this.tensorParallel = tensorParallel;
            this.contextParallel = contextParallel;
        }
    }

    private final String prefix;
    private final String group;
    private final Gradients gradients;
    private final Shared shared;

    /** What a rank's gradients of parameters declared here are. */
    private enum Gradients {
        /** Those of the rank's part, or the same on all tensor-parallel ranks. */
        WHOLE,
        /** A term of the sum over tensor-parallel ranks. */
        PARTIAL
    }

    /** Begins an empty plan. */
    public ModelPlan() {
        this(TensorParallel.none());
    }

    /** Begins an empty plan of what one of several tensor-parallel ranks has of a model. */
    public ModelPlan(TensorParallel tensorParallel) {
        this(Grouping.ON, Checks.given("tensorParallel", tensorParallel), ContextParallel.none());
    }

    /** Begins an empty plan of a model of which each of several context-parallel ranks computes a part of the tokens. */
    public ModelPlan(ContextParallel contextParallel) {
        this(Grouping.ON, TensorParallel.none(), Checks.given("contextParallel", contextParallel));
    }

    /**
     * Begins an empty plan of what one of several tensor-parallel ranks has of a model, of which each of several context-parallel ranks
     * computes a part of the tokens. Attention's heads are divided among all of these ranks.
     *
     * @throws IllegalArgumentException when tensor-parallel ranks share tokens out, too: {@link TensorParallel#withSequenceParallel}
     */
    public ModelPlan(TensorParallel tensorParallel, ContextParallel contextParallel) {
        this(
                Grouping.ON,
                Checks.given("tensorParallel", tensorParallel),
                Checks.given("contextParallel", contextParallel));
        if (tensorParallel.isSequenceParallel() && contextParallel.isSplit()) {
            throw new IllegalArgumentException("tensorParallel: expected ranks that have the same tokens between layers"
                    + " beside " + contextParallel + ", got " + tensorParallel);
        }
    }

    private ModelPlan(Grouping grouping, TensorParallel tensorParallel, ContextParallel contextParallel) {
        this("", "", Gradients.WHOLE, new Shared(grouping, tensorParallel, contextParallel));
    }

    private ModelPlan(String prefix, String group, Gradients gradients, Shared shared) {
        this.prefix = prefix;
        this.group = group;
        this.gradients = gradients;
        this.shared = shared;
    }

    /** Begins an empty plan whose {@link #group} is no more than {@link #child}: all parameters form one group. */
    public static ModelPlan ungrouped() {
        return new ModelPlan(Grouping.OFF, TensorParallel.none(), ContextParallel.none());
    }

    /**
     * For sharding: returns a plan of some parameters of this one, the same objects, and of the places of their groups where a recipe may
     * cast: what one stage of a pipeline has of the model. Nothing more is declared in either after this.
     *
     * @param chosen which parameters
     * @param kind parameters of a group whose kinds are not equal form groups of their own, such as those that other stages have, too, so that
     *     they lie alike wherever they are
     */
    public ModelPlan part(Predicate<Parameter> chosen, Function<Parameter, ?> kind) {
        Checks.given("chosen", chosen);
        Checks.given("kind", kind);
        ModelPlan part = new ModelPlan(Grouping.ON, shared.tensorParallel, shared.contextParallel);
        shared.groups.forEach((name, members) -> {
            Map<Object, List<Parameter>> kinds = members.stream()
                    .filter(chosen)
                    .collect(Collectors.groupingBy(
                            one -> (Object) kind.apply(one), LinkedHashMap::new, Collectors.toList()));
            kinds.forEach((same, kept) -> {
                part.shared.groups.put(kinds.size() == 1 ? name : name + " " + same, kept);
                part.shared.all.addAll(kept);
            });
        });
        part.shared.sites.addAll(shared.sites);
        part.shared.ranks = shared.ranks;
        return part;
    }

    /** Returns the part of this plan whose names begin with {@code name} and a dot, in the same group. */
    public ModelPlan child(String name) {
        return new ModelPlan(prefix + Checks.given("name", name) + ".", group, gradients, shared);
    }

    /** Returns the part of this plan whose names begin with {@code name} and a dot, as a group of its own. */
    public ModelPlan group(String name) {
        String full = prefix + Checks.given("name", name);
        return new ModelPlan(full + ".", shared.grouping == Grouping.ON ? full : group, gradients, shared);
    }

    /** Returns the ranks among which layers that are declared here are split. */
    public TensorParallel tensorParallel() {
        return shared.tensorParallel;
    }

    /** Returns the ranks among which the tokens are shared out that layers declared here read. */
    public ContextParallel contextParallel() {
        return shared.contextParallel;
    }

    /**
     * For authors of layers: returns this part for whole parameters of which each tensor-parallel rank computes a term of the gradient,
     * such as a norm of its heads. {@link Parameters#completeGradients} adds the terms up.
     */
    public ModelPlan withPartialGradients() {
        Gradients summed = shared.tensorParallel.isSplit() ? Gradients.PARTIAL : Gradients.WHOLE;
        return new ModelPlan(prefix, group, summed, shared);
    }

    /** Returns the name of this part without the dot behind it, such as {@code layers.0}; empty for the whole plan. */
    public String name() {
        return prefix.isEmpty() ? "" : prefix.substring(0, prefix.length() - 1);
    }

    /**
     * Returns this part for layers that read a rank's part of the tokens, such as a norm between {@code TokenScatter} and {@code
     * TokenGather}: where ranks are sequence-parallel each computes a term of the gradients. Layers that are split themselves, such as a
     * {@code TransformerLayer}, say so of their own norms.
     */
    public ModelPlan forTokenParts() {
        return shared.tensorParallel.isSequenceParallel() ? withPartialGradients() : this;
    }

    /**
     * Declares a parameter of the model's type.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException when the name is taken, a size is not positive, or there would be more elements than
     *     bytes can be counted of
     */
    public Parameter declare(String name, Initializer initializer, long... sizes) {
        return declare(name, initializer, null, new Shape(Checks.given("sizes", sizes)), null);
    }

    /**
     * For authors of layers: declares a parameter of the model's type of which this rank keeps a part. It begins as that part of the
     * whole one begins.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException as {@link #declare(String, Initializer, long...)}, or when the split is one among other ranks
     *     than the plan's
     */
    public Parameter declare(String name, Initializer initializer, ParameterSplit split) {
        ensureOwn(split);
        return declare(name, initializer, null, split.shape(), split);
    }

    /**
     * For authors of layers: declares a parameter of a type of its own of which this rank keeps a part.
     *
     * @param name behind this part's prefix
     * @param dtype FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException as {@link #declareAs(DType, String, Initializer, long...)}, or when the split is one among other
     *     ranks than the plan's
     */
    public Parameter declareAs(DType dtype, String name, Initializer initializer, ParameterSplit split) {
        ensureOwn(split);
        return declare(name, initializer, floats(dtype), split.shape(), split);
    }

    private void ensureOwn(ParameterSplit split) {
        TensorParallel own = shared.tensorParallel;
        if (Checks.given("split", split).rank() != own.rank() || split.ranks() != own.size()) {
            throw new IllegalArgumentException("split: expected the part of " + own + ", got that of rank "
                    + split.rank() + " of " + split.ranks());
        }
    }

    /**
     * Declares a parameter of a type of its own, such as a norm's weight in FLOAT32 in a model of BFLOAT16.
     *
     * @param name behind this part's prefix
     * @param dtype FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException when the name is taken, the type is no float, a size is not positive, or there would
     *     be more elements than bytes can be counted of
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
        String full = prefix + Checks.given("name", name);
        Checks.given("initializer", initializer);
        Shape whole = split == null ? shape : split.whole(); // Of an uneven split a rank may have nothing.
        for (long size : whole.sizes()) {
            if (size < 1) {
                throw new IllegalArgumentException(full + ": expected positive sizes, got " + whole);
            }
        }
        if (shape.rank() == 0 || isTooMany(shape)) {
            throw new IllegalArgumentException(full + ": expected 1 to " + Shape.MAX_RANK
                    + " dimensions and, with all declared before it, at most " + MOST_ELEMENTS + " elements, got "
                    + shape);
        }
        if (!shared.names.add(full)) {
            throw new IllegalArgumentException("name: " + full + " is declared already; give each layer a part"
                    + " of the plan of its own, such as plan.child(\"fc1\")");
        }
        Parameter parameter =
                new Parameter(full, shape, initializer, dtype, split, split == null && gradients == Gradients.PARTIAL);
        shared.all.add(parameter);
        shared.groups.computeIfAbsent(group, key -> new ArrayList<>()).add(parameter);
        return parameter;
    }

    private boolean isTooMany(Shape shape) {
        try {
            return shape.count() > MOST_ELEMENTS - count();
        } catch (ArithmeticException e) {
            return true;
        }
    }

    /**
     * Declares a place where a recipe may cast what is no weight.
     *
     * @param name behind this part's prefix
     * @throws IllegalArgumentException when the role is that of a weight
     */
    public QuantizerSite quantizer(String name, Role role) {
        if (Checks.given("role", role) == Role.WEIGHT) {
            throw new IllegalArgumentException(
                    "role: expected INPUT or GRADIENT, got WEIGHT; name the parameter instead");
        }
        return add(new QuantizerSite(prefix + Checks.given("name", name), group, role, shared.sites.size(), null));
    }

    /** Declares a place where a recipe may cast {@code weight}. */
    public QuantizerSite quantizer(String name, Parameter weight) {
        return add(QuantizerSite.ofWeight(prefix + Checks.given("name", name), group, shared.sites.size(), weight));
    }

    private QuantizerSite add(QuantizerSite site) {
        shared.sites.add(site);
        return site;
    }

    /** Returns the places of the whole plan where a recipe may cast, in the order of their declaration. */
    public List<QuantizerSite> quantizers() {
        return Collections.unmodifiableList(shared.sites);
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
        if (ranks < 1) {
            throw new IllegalArgumentException("ranks: expected at least 1, got " + ranks);
        }
        shared.ranks = ranks;
    }

    int ranks() {
        return shared.ranks;
    }

    /** Returns what was declared so far under this part's prefix, in this order. */
    public List<Parameter> parameters() {
        return prefix.isEmpty()
                ? Collections.unmodifiableList(shared.all)
                : shared.all.stream().filter(p -> p.name().startsWith(prefix)).toList();
    }

    /** Returns the groups of the whole plan by name, in the order in which they were begun. */
    public Map<String, List<Parameter>> groups() {
        return Collections.unmodifiableMap(shared.groups);
    }

    /** Returns the number of elements of {@link #parameters}. */
    public long count() {
        return parameters().stream().mapToLong(p -> p.shape().count()).sum();
    }

    /** Returns a table of the groups: name, parameters, elements. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        shared.groups.forEach((name, members) -> text.append(String.format(
                "%-24s %4d parameters %,15d elements%n",
                name.isEmpty() ? "(no group)" : name,
                members.size(),
                members.stream().mapToLong(p -> p.shape().count()).sum())));
        return text
                + String.format(
                        "%-24s %4d parameters %,15d elements",
                        "all",
                        shared.all.size(),
                        shared.all.stream().mapToLong(p -> p.shape().count()).sum());
    }
}
