package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;

/**
 * {@code y = norm(x) W^T + b}, or {@code y = norm(x) W^T} without bias.
 *
 * <p>Parameters: those of {@link LayerNorm} or {@link RmsNorm} under {@code norm}, those of {@link Linear} under
 * {@code linear}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code LayerNormLinear}.
 */
public final class LayerNormLinear extends NormedBranch {
    private final Linear linear;

    /** Declares the parameters in {@code plan}: {@code outputs} columns from those of the norm. */
    public LayerNormLinear(NormConfig normConfig, long outputs, Initializer initializer, ModelPlan plan) {
        this(normConfig, outputs, Bias.PRESENT, initializer, plan);
    }

    /** Declares the parameters in {@code plan}, the product's bias where it is present. */
    public LayerNormLinear(NormConfig normConfig, long outputs, Bias bias, Initializer initializer, ModelPlan plan) {
        this(normConfig, outputs, bias, ParallelMode.NONE, initializer, plan);
    }

    /**
     * Declares in {@code plan} the norm's parameters and this rank's part of the product's.
     *
     * @param outputs of the whole product
     * @param mode {@link ParallelMode#NONE} or {@link ParallelMode#COLUMN}: each rank has the whole output of the norm
     * @throws IllegalArgumentException when the mode is {@link ParallelMode#ROW}, or the plan's tensor-parallel ranks do not divide the
     *     outputs
     */
    public LayerNormLinear(
            NormConfig normConfig,
            long outputs,
            Bias bias,
            ParallelMode mode,
            Initializer initializer,
            ModelPlan plan) {
        if (Checks.given("mode", mode) == ParallelMode.ROW) {
            throw new IllegalArgumentException(
                    "mode: expected NONE or COLUMN, for a norm reads whole rows, got ROW; use Linear");
        }
        Checks.given("normConfig", normConfig, "bias", bias, "initializer", initializer, "plan", plan);
        this(
                NormLayer.of(normConfig, plan.child("norm")),
                new Linear(normConfig.size(), outputs, bias, mode, initializer, plan.child("linear")),
                plan);
    }

    private LayerNormLinear(NormLayer norm, Linear linear, ModelPlan plan) {
        super(plan.name(), norm, linear, linear, linear);
        this.linear = linear;
    }

    /** Returns the product. */
    public Linear linear() {
        return linear;
    }
}
