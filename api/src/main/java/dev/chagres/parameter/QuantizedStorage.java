package dev.chagres.parameter;

import dev.chagres.parameter.QuantizerSite.Role;
import java.util.HashSet;
import java.util.Set;

/**
 * Chooses the weights of a plan that are kept {@link WeightStorage#QUANTIZED}.
 *
 * <p>Threading: immutable.
 */
final class QuantizedStorage {
    private QuantizedStorage() {}

    /** Returns the weights that only products read, and those in eight bits. */
    static Set<Parameter> of(ModelPlan plan) {
        Set<Parameter> weights = new HashSet<>();
        for (QuantizerSite site : plan.quantizers()) {
            if (site.role() == Role.WEIGHT && isOwn(site) && site.fits()) {
                weights.add(site.weight());
            }
        }
        return weights;
    }

    /** Returns whether the layer that multiplies has declared the weight, without a type of its own. */
    private static boolean isOwn(QuantizerSite site) {
        return site.weight().ownType() == null
                && site.name().equals(site.weight().name())
                && !site.isInHead();
    }
}
