package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.WeightStorage;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;

/**
 * The sites whose tensors a recipe casts, after a check that it can.
 *
 * <p>Threading: immutable.
 */
final class CoveredSites {
    private CoveredSites() {}

    /** Returns every site whose name has no part {@value Quantizers#HEAD}. */
    static List<QuantizerSite> outsideHead(Parameters parameters, Recipe recipe) {
        return of(parameters, recipe, site -> !site.isInHead());
    }

    /** Returns every site except those of the groups {@code highPrecision}. */
    static List<QuantizerSite> outside(Parameters parameters, Recipe recipe, Set<String> highPrecision) {
        Set<String> groups = new TreeSet<>();
        Checks.given("parameters", parameters).quantizers().stream()
                .filter(site -> casts(Checks.given("recipe", recipe), site))
                .forEach(site -> groups.add(site.group()));
        for (String name : Checks.given("highPrecision", highPrecision)) {
            if (!groups.contains(Checks.given("highPrecision", name))) {
                throw new IllegalArgumentException(
                        "highPrecision: expected groups that have a product, " + groups + ", got " + name);
            }
        }
        Set<String> kept = Set.copyOf(highPrecision);
        return of(parameters, recipe, site -> !kept.contains(site.group()));
    }

    private static boolean casts(Recipe recipe, QuantizerSite site) {
        return !site.role().isOfAttention() || recipe.attention() != AttentionPrecision.HIGH_PRECISION;
    }

    private static List<QuantizerSite> of(Parameters parameters, Recipe recipe, Predicate<QuantizerSite> covers) {
        Checks.given("parameters", parameters, "recipe", recipe);
        if (recipe instanceof MXFP8BlockScaling || recipe instanceof NVFP4BlockScaling) {
            throw new IllegalArgumentException("recipe: " + recipe.getClass().getSimpleName()
                    + " needs a GPU of compute capability " + recipe.computeCapability()
                    + " (Blackwell), and this version computes only on 9.0; use Float8BlockScaling");
        }
        // Closed parameters would never close what is allocated now.
        parameters.gradients().address();
        List<QuantizerSite> covered = parameters.quantizers().stream()
                .filter(site -> casts(recipe, site))
                .filter(covers)
                .toList();
        if (covered.stream().allMatch(site -> site.role().isOfAttention())) {
            throw new IllegalArgumentException(
                    "parameters: expected a Linear outside the head and the groups that keep the"
                            + " model's type, for a recipe casts what its products read; got none");
        }
        for (QuantizerSite site : parameters.quantizers()) {
            // A rank of a pipeline has only the weights of its stages.
            if (site.role() == Role.WEIGHT && site.weight().hasMemory()) {
                require(site, covered.contains(site));
                requireUnheld(site.weight());
                requireTranspose(site.weight(), recipe);
            }
        }
        return covered;
    }

    private static void require(QuantizerSite site, boolean isCovered) {
        boolean quantized = site.weight().storage() != WeightStorage.MODEL_TYPE;
        if (quantized && !isCovered) {
            throw new IllegalArgumentException("parameters: " + site.weight().name()
                    + " is kept " + site.weight().storage() + ", so that it has no copy in the model's type, but group "
                    + site.group()
                    + " of " + site + " is to keep that type; cover it, or allocate with WeightStorage.MODEL_TYPE");
        }
        if (!quantized && isCovered) {
            requireSixteenBits(site.weight());
        }
    }

    /** A weight that is kept only in eight bits cannot change its recipe, since there is nothing to cast it from again. */
    private static void requireUnheld(Parameter weight) {
        if (!weight.isQuantizedOnly()) {
            return;
        }
        if (weight.isHeld()) {
            throw new IllegalStateException("parameters: " + weight.name() + " is kept QUANTIZED_ONLY, in the memory of"
                    + " the quantizers that were allocated first, and nothing is left to cast it from again; close"
                    + " these parameters and allocate others for another recipe");
        }
    }

    /** The transpose of a weight that is kept only in eight bits is made from its bytes, so scales must hold in both directions. */
    private static void requireTranspose(Parameter weight, Recipe recipe) {
        if (weight.isQuantizedOnly()
                && recipe instanceof Float8BlockScaling blocks
                && blocks.blocks().weight() != Scaling.BLOCK_2D) {
            throw new IllegalArgumentException("recipe: expected weights in blocks of BLOCK_2D, for " + weight.name()
                    + " is kept QUANTIZED_ONLY, so that its transpose is made of its bytes, got "
                    + blocks.blocks().weight()
                    + "; allocate with WeightStorage.QUANTIZED, or leave Blocks.weight as it is");
        }
    }

    /** Products in eight bits take a bias and give results of 16 bits. */
    private static void requireSixteenBits(Parameter weight) {
        DType dtype = weight.unreadWeight().dtype();
        if (dtype == DType.FLOAT32) {
            throw new IllegalArgumentException("parameters: expected BFLOAT16 or FLOAT16 weights for products in eight"
                    + " bits, got " + dtype + " " + weight + "; allocate them in BFLOAT16, or name their group among"
                    + " those that keep the model's type");
        }
    }
}
