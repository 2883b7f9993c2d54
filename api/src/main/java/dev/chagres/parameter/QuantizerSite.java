package dev.chagres.parameter;

import dev.chagres.Shape;
import dev.chagres.parallel.ParameterSplit;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A place in a model where a recipe may cast a tensor to eight bits: an input, a weight or a gradient of one product, or a tensor
 * of an attention. {@link ModelPlan#quantizer} declares it.
 *
 * <p>Threading: immutable.
 */
public final class QuantizerSite {
    /** Products of layers with this part in their names stay in the model's type, unless a recipe is configured otherwise: {@value}. */
    public static final String HEAD = "head";

    /** Products in eight bits sum over multiples of {@value} elements. */
    public static final long STEP = 16;

    /** Which tensor is cast. */
    public enum Role {
        /** The input of a product, forward. */
        INPUT,
        /** The weight of a product, forward. */
        WEIGHT,
        /** The gradient of a product's output, backward. */
        GRADIENT,
        /** An input or output of attention, forward. */
        ATTENTION,
        /** The softmax weights inside attention, at most 1. */
        ATTENTION_WEIGHTS,
        /** A gradient that attention's backward reads, writes, or rounds inside. */
        ATTENTION_GRADIENT;

        /** Returns whether a gradient is cast. */
        public boolean isGradient() {
            return this == GRADIENT || this == ATTENTION_GRADIENT;
        }

        /** Returns whether the tensor belongs to attention, which few recipes compute in eight bits. */
        public boolean isOfAttention() {
            return this == ATTENTION || this == ATTENTION_WEIGHTS || this == ATTENTION_GRADIENT;
        }
    }

    private final String name;
    private final String group;
    private final Role role;
    private final int index;
    private final @Nullable Parameter weight;
    private final boolean fits;

    QuantizerSite(String name, String group, Role role, int index, @Nullable Parameter weight) {
        this.name = name;
        this.group = group;
        this.role = role;
        this.index = index;
        this.weight = weight;
        fits = weight != null && fits(weight);
    }

    private static boolean fits(Parameter weight) {
        ParameterSplit split = weight.split();
        Shape shape = weight.shape();
        return (split == null || split.isEven()) && shape.size(0) % STEP == 0 && shape.size(1) % STEP == 0;
    }

    /** Returns the full name, such as {@code layers.0.mlp.fc1.input}. */
    public String name() {
        return name;
    }

    /** Returns the name of the group of the plan that the site was declared in. */
    public String group() {
        return group;
    }

    /** Returns the role of the tensor. */
    public Role role() {
        return role;
    }

    /** Returns the number of sites of the plan that were declared before this one. */
    public int index() {
        return index;
    }

    /**
     * Returns the weight that is cast.
     *
     * @throws IllegalStateException where the site is none of a weight
     */
    public Parameter weight() {
        Parameter present = weight;
        if (present == null) {
            throw new IllegalStateException(name + " casts no weight; its role is " + role);
        }
        return present;
    }

    /** Returns whether {@link #HEAD} is one of the parts of the name between dots. */
    public boolean isInHead() {
        return List.of(name.split("\\.")).contains(HEAD);
    }

    /**
     * Returns whether products in eight bits can sum over both sizes of the weight.
     *
     * @throws IllegalStateException where the site is none of a weight
     */
    public boolean fits() {
        var _ = weight();
        return fits;
    }

    static QuantizerSite ofWeight(String name, String group, int index, Parameter weight) {
        return new QuantizerSite(name, group, Role.WEIGHT, index, weight);
    }

    @Override
    public String toString() {
        return name;
    }
}
