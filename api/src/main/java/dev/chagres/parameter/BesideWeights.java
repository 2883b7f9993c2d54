package dev.chagres.parameter;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;

/**
 * The names of tensors that the file of a whole run has beside the weights of a model: what an optimizer keeps for a weight, such as {@code
 * weight.exp_avg}, what a recipe keeps for a place, such as {@code place.scale}, its histories, and the loss scale.
 *
 * <p>Threading: immutable.
 */
final class BesideWeights implements Predicate<String> {
    /** Prefixes of names that belong to no weight and no site. */
    private static final List<String> OWN = List.of("quantizers.", "loss_scaler.", "optimizer.");

    private final Set<String> names = new HashSet<>();

    BesideWeights(Collection<Parameter> parameters, Collection<QuantizerSite> places) {
        parameters.forEach(parameter -> names.add(parameter.name()));
        places.forEach(place -> names.add(place.name()));
    }

    @Override
    public boolean test(String name) {
        int dot = name.lastIndexOf('.');
        return dot > 0 && names.contains(name.substring(0, dot)) || OWN.stream().anyMatch(name::startsWith);
    }
}
