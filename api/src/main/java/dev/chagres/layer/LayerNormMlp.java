package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.ModelPlan;

/**
 * {@code y = activation(norm(x) W1^T + b1) W2^T + b2}, without b1 and b2 if {@link MlpConfig#bias} is {@link Bias#ABSENT}.
 *
 * <p>Parameters: the norm's under {@code norm}; {@code fc1} [F, H], or [2 F, H] where the activation is gated, and {@code fc2}
 * [H, F] as {@link Linear}.
 *
 * <p>16-bit types run GELU in the product's epilogue; other types and activations use a separate kernel for the activation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code LayerNormMLP}; {@code ops_matrix_product} and {@code activation.h}.
 */
public final class LayerNormMlp extends NormedBranch {
    private final MlpBranch mlp;

    /** Declares the parameters in {@code plan}. */
    public LayerNormMlp(MlpConfig config, ModelPlan plan) {
        Checks.given("config", config);
        Checks.given("plan", plan);
        this(NormLayer.of(config.norm(), plan.child("norm").forTokenParts()), new MlpBranch(config, plan), plan);
    }

    private LayerNormMlp(NormLayer norm, MlpBranch mlp, ModelPlan plan) {
        super(plan.name(), norm, mlp, mlp.reader(), mlp.fc2());
        this.mlp = mlp;
    }

    /** Returns the first product. */
    public Linear fc1() {
        return mlp.fc1();
    }

    /** Returns the second product. */
    public Linear fc2() {
        return mlp.fc2();
    }
}
