package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Norm;
import dev.chagres.internal.TensorCell;

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
    private final NormConfig config;
    private final Parameter weight;

    /** Declares the parameter in {@code plan}. */
    public RmsNorm(NormConfig config, ParameterPlan plan) {
        this.config = config;
        weight = plan.declare("weight", Initializer.ones(), config.size());
    }

    @Override
    public Parameter weight() {
        return weight;
    }

    @Override
    public Saved forward(Tensor x, Scope scope) {
        TensorCell input = Checks.matrix(scope, "x", x, weight.weight(scope).dtype(), config.size());
        Tensor y = scope.like(x);
        Tensor inverse = scope.tensor(DType.FLOAT32, input.size(0));
        norm(scope)
                .rmsForward(scope.stream(), input, weight.weight().cell(), config.epsilon(), y.cell(), inverse.cell());
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.layer() != this || saved.input() != x || saved.output() != y) {
            saved = new Saved(this, x, y, inverse, inverse);
        }
        return scope.keep(saved);
    }

    @Override
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        Checks.like(scope, "dy", dy, saved.output().cell());
        Tensor dx = scope.like(saved.input());
        try (Scope temporary = scope.open()) {
            Tensor dweight = temporary.tensor(dy.dtype(), config.size());
            norm(scope)
                    .rmsBackward(
                            scope.stream(),
                            dy.cell(),
                            saved.input().cell(),
                            saved.inverseDeviation().cell(),
                            weight.weight().cell(),
                            dx.cell(),
                            dweight.cell());
            LayerNorm.addTo(weight, dweight, accumulation, scope);
        }
        return dx;
    }

    private static Norm norm(Scope scope) {
        return scope.device().state().calls().norm();
    }
}
