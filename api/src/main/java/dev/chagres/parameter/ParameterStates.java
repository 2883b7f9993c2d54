package dev.chagres.parameter;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import java.util.regex.Pattern;

/**
 * The state of parameters that is saved and loaded: their weights by name, and the number of steps.
 *
 * <p>Threading: the device's thread.
 */
final class ParameterStates {
    private final Parameters owner;
    private final List<Parameter> parameters;
    private final ParameterVectors vectors;
    private final StepCount steps;
    private final RecipeNames recipeNames;

    /** {@code parameters} and {@code places}: those of the owner, with quantizer sites as places. */
    ParameterStates(
            Parameters owner,
            List<Parameter> parameters,
            List<QuantizerSite> places,
            ParameterVectors vectors,
            StepCount steps) {
        this.owner = owner;
        this.parameters = parameters;
        recipeNames = new RecipeNames(places);
        this.vectors = vectors;
        this.steps = steps;
    }

    /** Returns the weights and the number of steps. */
    State weightsAndStep() {
        return withStep(weights());
    }

    /** Returns the number of steps, for those who save the weights themselves. */
    State step() {
        return withStep(new State.Builder());
    }

    /**
     * Returns the weights. They are loaded from the file of a whole run, too, of which everything else is left out.
     *
     * @param places where a recipe may cast, of the same model
     */
    State weightsAlone(List<QuantizerSite> places) {
        return withoutStep(weights(), parameters, places);
    }

    /**
     * Returns what {@link #weightsAlone} has beside the weights, for those who save the weights themselves.
     *
     * @param ofModel all parameters of the model
     * @param places where a recipe may cast, of all the model
     */
    State besideWeights(List<Parameter> ofModel, List<QuantizerSite> places) {
        return withoutStep(new State.Builder(), ofModel, places);
    }

    private State.Builder weights() {
        if (!vectors.hasWholeWeights()) {
            throw new IllegalStateException("state: expected whole weights, got a rank's parts of them; save and load"
                    + " them with RunState.of(strategy)");
        }
        State.Builder state = new State.Builder();
        for (Parameter parameter : parameters) {
            if (parameter.isQuantizedOnly()) {
                state.quantized(parameter.name(), parameter.quantized());
            } else {
                state.tensor(parameter.name(), parameter.weight());
            }
        }
        return state;
    }

    private State withStep(State.Builder state) {
        return state.number("step", steps::step, steps::restore, Long.MAX_VALUE - 1)
                .ofRecipe(recipeNames)
                .afterLoading(this::loaded)
                .build();
    }

    private State withoutStep(State.Builder state, List<Parameter> ofModel, List<QuantizerSite> places) {
        return state.leaveOut(new BesideWeights(ofModel, places))
                .ofRecipe(new RecipeNames(places))
                .weightsAlone(ofModel.stream().map(Parameter::name).toList())
                .afterLoading(this::loaded)
                .build();
    }

    private void loaded() {
        vectors.changed();
        steps.changeWeights();
        steps.renew();
        steps.changeGradients();
        ParameterHooks use = owner.use();
        if (use != null) {
            use.loaded();
        }
    }

    /**
     * The names of what a recipe keeps, whichever it is: the scales of places of a model, {@code place.scale}, and the histories of their largest
     * magnitudes.
     */
    private static final class RecipeNames implements Predicate<String> {
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

    /**
     * The names of tensors that the file of a whole run has beside the weights of a model: what an optimizer keeps for a weight, such as {@code
     * weight.exp_avg}, what a recipe keeps for a place, such as {@code place.scale}, its histories, and the loss scale.
     */
    private static final class BesideWeights implements Predicate<String> {
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
            return dot > 0 && names.contains(name.substring(0, dot))
                    || OWN.stream().anyMatch(name::startsWith);
        }
    }
}
