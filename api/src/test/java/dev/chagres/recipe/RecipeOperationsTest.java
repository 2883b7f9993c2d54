package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import java.util.function.Function;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** How many operations forward and backward of a layer enqueue under a recipe, after a step that has cast its weights. */
@Tag("L0")
class RecipeOperationsTest {
    private static final int TOKENS = 128;
    private static final long SIZE = 64;

    /** A graph of CUDA's has a node a kernel, of which one call may launch several. */
    @BeforeEach
    void countsCalls() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "a graph of the reference has a node a call");
    }

    private static long operations(Function<ModelPlan, Layer> maker, Recipe recipe) {
        ModelPlan plan = new ModelPlan();
        Layer layer = maker.apply(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Scope inputs = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.autocast(Quantizers.allocate(parameters, recipe));
            Sequences sequences = Sequences.packed(inputs, TOKENS);
            Tensor x = inputs.tensor(DType.BFLOAT16, TOKENS, SIZE);
            x.zero(device.stream());
            Runnable step = () -> layer.backward(layer.forward(x, pass), pass);
            Runnable twice = () -> {
                step.run();
                step.run();
            };
            pass.begin(sequences);
            twice.run();
            pass.begin(sequences);
            // The first step of a graph casts the weights.
            try (Graph one = device.stream().capture(step);
                    Graph both = device.stream().capture(twice)) {
                return both.nodes() - one.nodes();
            }
        }
    }

    private static long ofMlp(Activation activation, Bias bias, Recipe recipe) {
        MlpConfig config = MlpConfig.gelu(SIZE).withActivation(activation).withBias(bias);
        return operations(plan -> new LayerNormMlp(config, plan), recipe);
    }

    /**
     * Forward is norm, product, activation and product. Backward casts the gradient, computes the activation again, four
     * products, the activation's gradient and the norm's gradient, and adds the gradients of the norm's two parameters.
     */
    @Test
    void delayedScalingCastsWithoutOperationsOfItsOwn() {
        Recipe recipe = DelayedScaling.standard();
        assertEquals(14, ofMlp(Activation.GELU, Bias.ABSENT, recipe));
        assertEquals(14, ofMlp(Activation.SWIGLU, Bias.ABSENT, recipe));
        assertEquals(14, ofMlp(Activation.CLAMPED_SWIGLU, Bias.ABSENT, recipe));
        assertEquals(16, ofMlp(Activation.GELU, Bias.PRESENT, recipe), "two sums go to gradients of biases");
        assertEquals(17, ofMlp(Activation.SWIGLU, Bias.PRESENT, recipe), "a cast that sums the bias gradient");
    }

    /**
     * Thirteen operations, and five casts that each find a magnitude and a scale before. Four find the magnitude where the tensor
     * is computed, and write a 0 before instead of reading the tensor once more. Two round that of the activation's gradient.
     */
    @Test
    void currentScalingFindsMagnitudesWhereTensorsAreComputed() {
        Recipe recipe = Float8CurrentScaling.standard();
        assertEquals(30, ofMlp(Activation.GELU, Bias.ABSENT, recipe));
        assertEquals(30, ofMlp(Activation.SWIGLU, Bias.ABSENT, recipe));
        assertEquals(32, ofMlp(Activation.GELU, Bias.PRESENT, recipe), "two sums go to gradients of biases");
    }
}
