package dev.chagres.drawn;

import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.witness.AttentionWitness;
import dev.chagres.witness.TransformerLayerWitness;
import java.util.Objects;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;

/** How far the results of a drawn layer may lie from double precision. */
final class DrawnTolerances {
    private static final double LEAST = 0.1;

    private final DrawnLayer drawn;

    DrawnTolerances(DrawnLayer drawn) {
        this.drawn = drawn;
    }

    private String recipe() {
        DrawnRecipe recipe = Objects.requireNonNull(drawn.recipe());
        return recipe.recipe().getClass().getSimpleName() + (recipe.wantsAttention() ? " and attention" : "");
    }

    /** Few tokens and columns average little, and the softmax of a decoder's memory carries rounding on: more than larger layers need. */
    Tolerance output() {
        return drawn.casts()
                ? new Tolerance(recipe() + ", y", 0.25, 2)
                : Tolerances.layers(drawn.dtype(), drawn.decodes() ? 100 : 16);
    }

    /** E5M2 rounds by up to an eighth, and what cancels shows that as large as itself; all gradients together say more. */
    Tolerance gradient() {
        return drawn.casts() ? new Tolerance(recipe() + ", one gradient", 1, 6) : output();
    }

    /** All gradients of the parameters as one vector. */
    Tolerance allGradients() {
        return new Tolerance(recipe() + ", all gradients", 0.3, 6);
    }

    /**
     * What errors of a gradient of one micro-batch are compared with at least. The gradient of a score is a difference, {@code p (dp - sum of p dp)}, and 0 where
     * a query sees one key: rounding is as large as what it is the difference of. A norm of heads and a sink have no more than the sum of
     * such differences.
     */
    double summands(String name, TransformerLayerWitness witness) {
        boolean cross = name.startsWith("cross_attention.");
        AttentionWitness attention = cross
                ? witness.crossAttention().attention()
                : witness.attention().attention();
        AttentionConfig config = cross ? drawn.crossAttention() : drawn.config().attention();
        double size = switch (name.substring(name.indexOf('.') + 1)) {
            case "q_norm.weight", "q_norm.bias" -> norm(attention.querySummands(), config.headDim());
            case "k_norm.weight", "k_norm.bias" -> norm(attention.keySummands(), config.headDim());
            case "softmax_offset" ->
                norm(MatrixUtils.createRowRealMatrix(attention.scores().sinksSummands()), config.heads());
            default -> 0;
        };
        return Math.max(LEAST, size);
    }

    /** Returns the root mean square of sums over rows of numbers of any sign. */
    private static double norm(RealMatrix summands, int columns) {
        return summands.getFrobeniusNorm() / Math.sqrt(columns);
    }
}
