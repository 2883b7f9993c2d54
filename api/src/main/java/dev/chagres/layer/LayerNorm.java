package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;

/**
 * {@code y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias}, over each row; with
 * {@code 1 + weight} for weight where that is centred on zero.
 *
 * <p>Parameters: {@code weight} [H], ones, or zeros where centred on zero; {@code bias} [H], zeros. Mean and variance are computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Ba et al., Layer normalization (2016); {@code nvte_layernorm_fwd}, {@code nvte_layernorm_bwd} in TE's
 * {@code normalization.h}.
 */
public final class LayerNorm extends NormLayer {
    private final Parameter bias;

    /** Declares the parameters in {@code plan}. */
    public LayerNorm(NormConfig config, ModelPlan plan) {
        Checks.given("config", config, "plan", plan);
        super(plan.name(), config, plan.declare("weight", config.initializer(), config.size()));
        bias = plan.declare("bias", Initializer.zeros(), config.size());
    }

    /** Returns the summand of each column. */
    public Parameter bias() {
        return bias;
    }

    @Override
    void normalize(Tensor x, Tensor y, Tensor mean, Tensor inverse, Pass pass) {
        norm().gamma(weight().weight()).beta(bias.weight()).layernormFwd(x, y, mean, inverse, pass.stream());
    }

    @Override
    Parameter shift() {
        return bias;
    }

    @Override
    void gradient(Tensor dy, Tensor x, Tensor mean, Tensor inverse, Tensor dx, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor dweight = temporary.tensor(dy.dtype(), config().size());
        Tensor dbias = temporary.tensor(dy.dtype(), config().size());
        norm().gamma(weight().weight()).layernormBwd(dy, x, mean, inverse, dx, dweight, dbias, pass.stream());
        accumulate(weight(), dweight, pass);
        accumulate(bias, dbias, pass);
    }
}
