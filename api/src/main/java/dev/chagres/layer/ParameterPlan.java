package dev.chagres.layer;

import dev.chagres.tensor.Shape;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * The parameters that layers have declared, before any memory is taken: a model is described first and placed afterwards.
 *
 * <p>Threading: one thread at a time.
 */
public final class ParameterPlan {
    private final String prefix;
    private final List<Parameter> parameters;
    private final Set<String> names;

    /** Begins an empty plan. */
    public ParameterPlan() {
        this("", new ArrayList<>(), new HashSet<>());
    }

    private ParameterPlan(String prefix, List<Parameter> parameters, Set<String> names) {
        this.prefix = prefix;
        this.parameters = parameters;
        this.names = names;
    }

    /** Returns the part of this plan whose names begin with {@code name} and a dot. */
    public ParameterPlan child(String name) {
        return new ParameterPlan(prefix + name + ".", parameters, names);
    }

    /**
     * Declares a parameter.
     *
     * @throws IllegalArgumentException when the name is taken, or a size is not positive
     */
    public Parameter declare(String name, Initializer initializer, long... sizes) {
        String full = prefix + name;
        for (long size : sizes) {
            if (size < 1) {
                throw new IllegalArgumentException(full + ": expected positive sizes, got " + new Shape(sizes));
            }
        }
        if (!names.add(full)) {
            throw new IllegalArgumentException("name: " + full + " is declared already");
        }
        Parameter parameter = new Parameter(full, new Shape(sizes), initializer);
        parameters.add(parameter);
        return parameter;
    }

    /** Returns everything declared so far, in this order. */
    public List<Parameter> parameters() {
        return Collections.unmodifiableList(parameters);
    }

    /** Returns the number of elements of all parameters. */
    public long count() {
        return parameters.stream().mapToLong(p -> p.shape().count()).sum();
    }
}
