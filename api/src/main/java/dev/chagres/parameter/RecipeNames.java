package dev.chagres.parameter;

import java.util.Collection;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Predicate;
import java.util.regex.Pattern;

/**
 * The names of what a recipe keeps, whichever it is: the scales of places of a model, {@code place.scale}, and the histories of their largest
 * magnitudes.
 *
 * <p>Threading: immutable.
 */
final class RecipeNames implements Predicate<String> {
    private static final Pattern HISTORY =
            Pattern.compile("quantizers\\.(forward|backward)\\.[a-z0-9_]+\\.amax_history");

    private final Set<String> scales = new HashSet<>();

    RecipeNames(Collection<QuantizerSite> places) {
        places.forEach(place -> scales.add(place.name() + ".scale"));
    }

    @Override
    public boolean test(String name) {
        return scales.contains(name) || HISTORY.matcher(name).matches();
    }
}
