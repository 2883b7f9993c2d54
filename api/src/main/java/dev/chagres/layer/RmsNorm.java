package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = x / sqrt(mean(x^2) + epsilon) * weight}, over each row; with {@code 1 + weight} for weight
 * where that is centred on zero.
 *
 * <p>Parameter: {@code weight} [H], ones, or zeros where centred on zero. The mean is computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Zhang and Sennrich, Root mean square layer normalization (2019); {@code nvte_rmsnorm_fwd},
 * {@code nvte_rmsnorm_bwd} in TE's {@code normalization.h}.
 */
public final class RmsNorm extends NormLayer {
    /** Declares the parameter in {@code plan}. */
    public RmsNorm(NormConfig config, ModelPlan plan) {
        Checks.given("config", config, "plan", plan);
        super(plan.name(), config, plan.declare("weight", config.initializer(), config.size()));
    }

    @Override
    void normalize(Tensor x, Tensor y, Tensor mean, Tensor inverse, Pass pass) {
        norm().gamma(weight().weight()).rmsnormFwd(x, y, inverse, pass.stream());
    }

    @Override
    @Nullable
    Parameter shift() {
        return null;
    }

    @Override
    void gradient(Tensor dy, Tensor x, Tensor mean, Tensor inverse, Tensor dx, Pass pass) {
        Tensor dweight = pass.temporary().tensor(dy.dtype(), config().size());
        norm().gamma(weight().weight()).rmsnormBwd(dy, x, inverse, dx, dweight, pass.stream());
        accumulate(weight(), dweight, pass);
    }
}
