package dev.chagres.models.esm;

import dev.chagres.Tensor;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.GeluForm;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;

/**
 * The masked-language-model head: {@code y = decoder(norm(gelu(dense(x))))}, with the embedding's table as the decoder's
 * weight.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Head extends Layer {
    private final Linear dense;
    private final ActivationLayer gelu;
    private final LayerNorm norm;
    private final Linear decoder;

    Esm2Head(NormConfig normConfig, GeluForm form, Initializer weights, Parameter table, ModelPlan plan) {
        super(plan.name());
        long hidden = normConfig.size();
        dense = new Linear(hidden, hidden, weights, plan.child("dense"));
        gelu = new ActivationLayer(plan.name() + ".gelu", form);
        norm = new LayerNorm(normConfig, plan.child("norm"));
        decoder = Linear.tied(table, plan.child("decoder"));
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        decoder.forward(norm.forward(gelu.forward(dense.forward(x, pass), pass), pass), y, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        dense.backward(gelu.backward(norm.backward(decoder.backward(dy, pass), pass), pass), dx, pass);
    }

    @Override
    public long outputColumns(long inputColumns) {
        return decoder.outputColumns(inputColumns);
    }

    @Override
    public boolean requiresGradient() {
        return anyRequiresGradient(dense, norm) || decoder.requiresGradient();
    }
}
