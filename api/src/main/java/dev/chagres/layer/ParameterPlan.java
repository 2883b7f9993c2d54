package dev.chagres.layer;

import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;
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
    /** Whose bytes can be counted, with some left to align each parameter. */
    private static final long MOST_ELEMENTS = Long.MAX_VALUE / 16;

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
     * @throws IllegalArgumentException when the name is taken, a size is not positive, or there would be more elements than
     *     bytes can be counted of
     */
    public Parameter declare(String name, Initializer initializer, long... sizes) {
        String full = prefix + name;
        for (long size : sizes) {
            if (size < 1) {
                throw new IllegalArgumentException(full + ": expected positive sizes, got " + new Shape(sizes));
            }
        }
        Shape shape = new Shape(sizes);
        if (sizes.length == 0 || TensorCell.product(sizes) < 0 || TensorCell.product(sizes) > MOST_ELEMENTS - count()) {
            throw new IllegalArgumentException(full + ": expected 1 to " + Shape.MAX_RANK
                    + " dimensions and, with all declared before it, at most " + MOST_ELEMENTS + " elements, got "
                    + shape);
        }
        if (!names.add(full)) {
            throw new IllegalArgumentException("name: " + full + " is declared already");
        }
        Parameter parameter = new Parameter(full, shape, Checks.given("initializer", initializer));
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
