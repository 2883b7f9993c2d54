package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.Norm;
import dev.chagres.internal.ResidualNorm;
import dev.chagres.internal.TensorCell;

/**
 * {@code y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias}, over each row.
 *
 * <p>Parameters: {@code weight} [H], ones; {@code bias} [H], zeros. Mean and variance are computed in FP32.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Ba et al., Layer normalization (2016); {@code nvte_layernorm_fwd}, {@code nvte_layernorm_bwd} in TE's
 * {@code normalization.h}.
 */
public final class LayerNorm extends NormLayer {
    private final NormConfig config;
    private final Parameter weight;
    private final Parameter bias;

    /** Declares the parameters in {@code plan}. */
    public LayerNorm(NormConfig config, ParameterPlan plan) {
        this.config = config;
        weight = plan.declare("weight", Initializer.ones(), config.size());
        bias = plan.declare("bias", Initializer.zeros(), config.size());
    }

    @Override
    public Parameter weight() {
        return weight;
    }

    /** Returns the summand of each column. */
    public Parameter bias() {
        return bias;
    }

    @Override
    public Saved forward(Tensor x, Scope scope) {
        TensorCell input = Checks.matrix(scope, "x", x, weight.weight(scope).dtype(), config.size());
        Tensor y = scope.like(x);
        Tensor mean = scope.tensor(DType.FLOAT32, input.size(0));
        Tensor inverse = scope.tensor(DType.FLOAT32, input.size(0));
        norm(scope)
                .layerForward(
                        scope.stream(),
                        input,
                        weight.weight().cell(),
                        bias.weight().cell(),
                        config.epsilon(),
                        y.cell(),
                        mean.cell(),
                        inverse.cell());
        return keep(x, y, mean, inverse, scope);
    }

    @Override
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        Checks.like(scope, "dy", dy, saved.output().cell());
        Tensor dx = scope.like(saved.input());
        try (Scope temporary = scope.open()) {
            long size = config.size();
            Tensor both = temporary.tensor(dy.dtype(), 2, size);
            Tensor dweight = temporary.view(both, 0, size);
            Tensor dbias = temporary.view(both, size, size);
            norm(scope)
                    .layerBackward(
                            scope.stream(),
                            dy.cell(),
                            saved.input().cell(),
                            saved.mean().cell(),
                            saved.inverseDeviation().cell(),
                            weight.weight().cell(),
                            dx.cell(),
                            dweight.cell(),
                            dbias.cell());
            if (liesBehind(bias.gradient(), weight.gradient())) {
                addTo(weight, both, accumulation, scope);
            } else {
                addTo(weight, dweight, accumulation, scope);
                addTo(bias, dbias, accumulation, scope);
            }
        }
        return dx;
    }

    @Override
    Saved forwardSum(Tensor x, Tensor residual, Scope scope) {
        TensorCell input = Checks.matrix(scope, "x", x, weight.weight().dtype(), config.size());
        if (!ResidualNorm.takes(input)) {
            return super.forwardSum(x, residual, scope);
        }
        Tensor y = scope.like(x);
        Tensor mean = scope.tensor(DType.FLOAT32, input.size(0));
        Tensor inverse = scope.tensor(DType.FLOAT32, input.size(0));
        ResidualNorm.forward(
                scope.stream(),
                input,
                residual.cell(),
                weight.weight().cell(),
                bias.weight().cell(),
                config.epsilon(),
                input,
                y.cell(),
                mean.cell(),
                inverse.cell());
        return keep(x, y, mean, inverse, scope);
    }

    @Override
    void backwardSum(Tensor dy, Saved saved, Tensor dresidual, Tensor dx, Accumulation accumulation, Scope scope) {
        if (!ResidualNorm.takes(dx.cell())) {
            super.backwardSum(dy, saved, dresidual, dx, accumulation, scope);
            return;
        }
        ResidualNorm.backward(
                scope.stream(),
                dy.cell(),
                saved.input().cell(),
                saved.mean().cell(),
                saved.inverseDeviation().cell(),
                weight.weight().cell(),
                dresidual.cell(),
                dx.cell(),
                weight.gradient().cell(),
                bias.gradient().cell(),
                accumulation.beta());
    }

    private Saved keep(Tensor x, Tensor y, Tensor mean, Tensor inverse, Scope scope) {
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.layer() != this || saved.input() != x || saved.output() != y) {
            saved = new Saved(this, x, y, mean, inverse);
        }
        return scope.keep(saved);
    }

    /** Returns whether two gradients are neighbours: then one kernel serves both. */
    private static boolean liesBehind(Tensor second, Tensor first) {
        return second.pointer().address() == first.pointer().address() + first.byteSize();
    }

    static void addTo(Parameter parameter, Tensor gradient, Accumulation accumulation, Scope scope) {
        Elementwise.accumulate(
                scope.stream(), gradient.cell(), parameter.gradient().cell(), accumulation.beta());
    }

    private static Norm norm(Scope scope) {
        return scope.device().state().calls().norm();
    }
}
