package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.ops.ProductPlan;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.SplittableRandom;

/** One TransformerLayer and its input, in BFLOAT16. */
final class LayerStep implements AutoCloseable {
    /** Steps in a row that are timed together. */
    static final int BACK_TO_BACK = 20;

    private final LayerShape shape;
    private final Device device = Device.open();
    private final Parameters parameters;
    private final TransformerLayer layer;
    private final Pass pass;
    private final Sequences sequences;
    private final Tensor x;
    private final Tensor dy;

    /** Makes layer and input, and checks that the output is finite and not constant. */
    LayerStep(LayerShape shape, LayerRecipe recipe, LayerLayout layout, ProductPlan productPlan) {
        this.shape = shape;
        dev.chagres.Scope inputs = device.openScope();
        pass = Pass.training(device);
        pass.productPlan(productPlan);
        ModelPlan plan = new ModelPlan();
        layer = new TransformerLayer(config(), plan);
        parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
        var _ = recipe.begin(parameters, pass);
        sequences = layout.sequences(inputs, shape);
        x = normal(inputs, layout.tokens(shape), 1);
        dy = normal(inputs, layout.tokens(shape), 2);
        run();
        check(layer.forward(x, pass).toFloats(device.stream()));
    }

    private static void check(float[] y) {
        double sum = 0;
        for (float value : y) {
            sum += Math.abs(value);
        }
        if (!(sum > 0) || Double.isInfinite(sum)) {
            throw new IllegalStateException("expected finite numbers other than 0, their absolute sum is " + sum);
        }
    }

    private TransformerLayerConfig config() {
        int headDim = (int) (shape.hidden() / shape.heads());
        return TransformerLayerConfig.encoder(
                        shape.hidden(), AttentionConfig.of(shape.heads(), headDim, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(shape.hidden())
                        .withInner(shape.inner())
                        .withRecomputation(MlpConfig.Recomputation.NONE));
    }

    private Tensor normal(dev.chagres.Scope scope, int tokens, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[Math.toIntExact(tokens * shape.hidden())];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, tokens, shape.hidden());
        tensor.set(device.stream(), values);
        return tensor;
    }

    Stream stream() {
        return device.stream();
    }

    /** Enqueues forward and backward as a step of its own: gradients are written, not added up. Returns the gradient of x. */
    Tensor run() {
        parameters.nextStep();
        pass.begin(sequences);
        layer.forward(x, pass);
        return layer.backward(dy, pass);
    }

    @Override
    public void close() {
        pass.close();
        parameters.close();
        device.close();
    }
}
