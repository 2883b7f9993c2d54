package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.Checks;
import dev.chagres.model.ModelPlan;

/**
 * {@code h = x + path(dropout(attention(norm(x))))}, {@code y = h + path(dropout(mlp(norm(h))))}: a pre-norm encoder layer
 * over {@link Pass#sequences()}. {@code path} leaves a branch out of whole sequences.
 *
 * <p>Parameters: {@code attention} as {@link MultiheadAttention}, {@code mlp} as {@link LayerNormMlp}.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="transformerLayer"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code TransformerLayer} with {@code layer_type="encoder"}.
 */
public final class TransformerLayer extends Layer {
    private final MultiheadAttention attention;
    private final LayerNormMlp mlp;
    private final ResidualStream stream;

    /** Declares the parameters in {@code plan}. */
    public TransformerLayer(TransformerLayerConfig config, ModelPlan plan) {
        Checks.given("config", config);
        super(Checks.given("plan", plan).name());
        attention = new MultiheadAttention(
                config.norm(), config.attention(), config.bias(), config.initializer(), plan.child("attention"));
        mlp = new LayerNormMlp(config.mlp(), plan.child("mlp"));
        stream = new ResidualStream(
                this, new ResidualDropout(config.hiddenDropout(), config.dropPath()), attention, mlp);
    }

    /** Returns the first half. */
    public MultiheadAttention attention() {
        return attention;
    }

    /** Returns the second half. */
    public LayerNormMlp mlp() {
        return mlp;
    }

    /**
     * Rotates query and key by their positions in forward calls from now on; backward undoes the rotation of its own forward.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding rotary) {
        attention.rotate(rotary);
    }

    @Override
    protected void run(Tensor x, Tensor y, Pass pass) {
        stream.run(x, y, pass);
    }

    @Override
    protected void gradient(Tensor dy, Tensor dx, Pass pass) {
        stream.gradient(dy, dx, pass);
    }

    @Override
    public boolean requiresGradient() {
        return attention.requiresGradient() || mlp.requiresGradient();
    }

    @Override
    public boolean worksInPlace() {
        return true;
    }

    /** The kernels of sum and norm load 16 bytes at a time. */
    @Override
    boolean needsAlignment() {
        return true;
    }

    @Override
    protected void checkInput(Tensor x) {
        attention.checkInput(x);
    }

    @Override
    public String explain(Tensor x, Pass pass) {
        return name() + ":\n"
                + (attention.explain(x, pass) + "\n" + mlp.explain(x, pass))
                        .indent(2)
                        .stripTrailing();
    }
}
