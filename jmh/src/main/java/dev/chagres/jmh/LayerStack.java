package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.launch.Rank;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.ops.ProductPlan;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.SplittableRandom;

/** Four transformer layers in BFLOAT16, and a rank's own input. */
abstract class LayerStack implements AutoCloseable {
    private static final int LAYERS = 4;

    final Rank rank;
    final ModelPlan plan = new ModelPlan();
    final Pass pass;
    private final Sequential layers;
    private final Sequences sequences;
    private final Tensor x;
    private final Tensor dy;

    /** Plans the layers; subclasses allocate their parameters. */
    LayerStack(Rank rank, LayerShape shape) {
        this.rank = rank;
        TransformerLayerConfig config = config(shape);
        layers = Sequential.of(LAYERS, i -> new TransformerLayer(config, plan.group("layers." + i)));
        pass = Pass.training(rank.device());
        pass.productPlan(ProductPlan.MEASURED);
        Scope inputs = rank.device().openScope();
        sequences = LayerLayout.DENSE.sequences(inputs, shape);
        x = normal(inputs, shape, 2L * rank.index());
        dy = normal(inputs, shape, 2L * rank.index() + 1);
    }

    private static TransformerLayerConfig config(LayerShape shape) {
        int headDim = (int) (shape.hidden() / shape.heads());
        return TransformerLayerConfig.encoder(
                        shape.hidden(), AttentionConfig.of(shape.heads(), headDim, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(shape.hidden())
                        .withInner(shape.inner())
                        .withRecomputation(MlpConfig.Recomputation.NONE));
    }

    private Tensor normal(Scope scope, LayerShape shape, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[Math.toIntExact(shape.tokens() * shape.hidden())];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, shape.tokens(), shape.hidden());
        tensor.set(pass.stream(), values);
        return tensor;
    }

    /** Makes four steps, and checks that the gradient of x is finite and not 0. */
    final void warmUp() {
        for (int i = 0; i < 3; i++) {
            run();
        }
        double sum = 0;
        for (float value : run().toFloats(pass.stream())) {
            sum += Math.abs(value);
        }
        if (!(sum > 0) || Double.isInfinite(sum)) {
            throw new IllegalStateException("expected finite numbers other than 0, their absolute sum is " + sum);
        }
    }

    /** Enqueues forward and backward as a step of its own: gradients are written, not added up. Returns x's gradient. */
    final Tensor run() {
        pass.begin(sequences);
        beginStep();
        layers.forward(x, pass);
        Tensor dx = layers.backward(dy, pass);
        endStep();
        return dx;
    }

    /** Runs before forward. */
    abstract void beginStep();

    /** Runs after backward. */
    abstract void endStep();

    /** Waits for the device. */
    abstract void await();

    @Override
    public abstract void close();
}
