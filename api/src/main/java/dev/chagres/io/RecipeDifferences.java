package dev.chagres.io;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.List;

/**
 * The scales and histories that {@link Safetensors#loadUnderOtherRecipe} did not load, because the file's run had another recipe.
 *
 * <p>Scales and histories are loaded together or not at all: if the file has exactly those of the state, with their types and shapes, all
 * are loaded and both lists are empty; else none is loaded.
 *
 * <p>Threading: immutable.
 *
 * @param ignored names of those in the file, which were not loaded
 * @param missing names of those in the state, which keep their values: those of new quantizers begin anew
 */
public record RecipeDifferences(List<String> ignored, List<String> missing) {
    /** Everything is loaded. */
    public static final RecipeDifferences NONE = new RecipeDifferences(List.of(), List.of());

    /**
     * Takes both lists.
     *
     * @throws NullPointerException when a list or a name is null
     */
    public RecipeDifferences {
        ignored = List.copyOf(Checks.givenAll("ignored", ignored));
        missing = List.copyOf(Checks.givenAll("missing", missing));
    }

    /** For sharding: compares the scales and histories of a file and a state. */
    public static RecipeDifferences between(SafetensorsFile file, State state) {
        Checks.given("state", state);
        List<String> ignored = new ArrayList<>();
        boolean same = true;
        for (SafetensorsEntry entry : Checks.given("file", file).entries().values()) {
            if (state.isOfRecipe(entry.name())) {
                ignored.add(entry.name());
                same &= fits(entry, state);
            }
        }
        List<String> missing =
                state.tensors().keySet().stream().filter(state::isOfRecipe).toList();
        same &= ignored.size() == missing.size();
        return same ? NONE : new RecipeDifferences(ignored, missing);
    }

    private static boolean fits(SafetensorsEntry entry, State state) {
        var tensor = state.tensors().get(entry.name());
        return tensor != null && entry.fits(new TensorSpec(entry.name(), tensor.dtype(), tensor.shape()));
    }

    /** Returns whether everything is loaded. */
    public boolean isEmpty() {
        return ignored.isEmpty() && missing.isEmpty();
    }
}
