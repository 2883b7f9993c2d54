package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;

/**
 * {@code y = x / sqrt(mean(x^2) + epsilon) * weight}, over each row.
 *
 * <p>Parameter: {@code weight} [H], ones. The mean is computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Zhang and Sennrich, Root mean square layer normalization (2019); {@code nvte_rmsnorm_fwd},
 * {@code nvte_rmsnorm_bwd} in TE's {@code normalization.h}.
 */
public final class RmsNorm extends NormLayer {
    /** Declares the parameter in {@code plan}. */
    public RmsNorm(NormConfig config, ModelPlan plan) {
        Checks.given("config", config);
        Checks.given("plan", plan);
        super(plan.name(), config, plan.declare("weight", Initializer.ones(), config.size()));
    }

    @Override
    void normalize(Tensor x, Tensor y, Tensor mean, Tensor inverse, Pass pass) {
        Normalization.rmsnormFwd(x, weight().weight(), config().epsilon(), y, inverse, Gamma.PLAIN, pass.stream());
    }

    @Override
    void normalizeSum(Tensor x, Tensor residual, Tensor sum, Tensor y, Tensor mean, Tensor inverse, Pass pass) {
        throw new IllegalStateException("RMS norm has no kernel for sum and norm");
    }

    @Override
    void gradient(Tensor dy, Tensor x, Tensor mean, Tensor inverse, Tensor dx, Pass pass) {
        Tensor dweight = pass.temporary().tensor(dy.dtype(), config().size());
        Normalization.rmsnormBwd(dy, x, inverse, weight().weight(), dx, dweight, Gamma.PLAIN, pass.stream());
        accumulate(weight(), dweight, pass);
    }

    @Override
    void gradientOfSum(Tensor dy, Tensor x, Tensor mean, Tensor inverse, Tensor dresidual, Tensor dx, Pass pass) {
        throw new IllegalStateException("RMS norm has no kernel for sum and norm");
    }

    @Override
    boolean fusesSum(Tensor x) {
        return false;
    }

    @Override
    boolean fusesGradientOfSum(Tensor x) {
        return false;
    }

    @Override
    public boolean requiresGradient() {
        return !weight().isFrozen();
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return name() + ": RMS norm by te_rmsnorm_fwd and te_rmsnorm_bwd; a residual sum before it is ops_add, for no"
                + " kernel computes both";
    }
}
