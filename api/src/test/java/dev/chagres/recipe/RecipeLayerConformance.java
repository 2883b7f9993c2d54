package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerance;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * {@code TransformerLayer} under each recipe against the same layer in double precision. E4M3 rounds to 3 bits behind the
 * first, E5M2 to 2: values are off by 2.5 and 5 percent in the mean, and two of them meet in each product.
 */
@Tag("L0")
@Tag("L1")
class RecipeLayerConformance {
    private static final Tolerance FORWARD = new Tolerance("layer in eight bits, forward", 6e-2, 0.6);
    private static final Tolerance BACKWARD = new Tolerance("layer in eight bits, backward", 1.6e-1, 3);

    /** Gradients of norms and biases: sums of a column, in which much cancels. */
    private static final Tolerance VECTORS = new Tolerance("layer in eight bits, norms and biases", 3e-1, 3);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(Recipe recipe, Activation activation, Recomputation recomputation, TokenRows tokens) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Recipe recipe : RecipeLinearConformance.recipes()) {
            TokenRows packed = TokenRows.packed(17, 1, 0, 65, 16);
            cases.add(new Case(recipe, Activation.GELU, Recomputation.ACTIVATION, packed));
            cases.add(new Case(recipe, Activation.GELU, Recomputation.NONE, packed));
            cases.add(new Case(recipe, Activation.SWIGLU, Recomputation.NONE, TokenRows.packed(128)));
            cases.add(new Case(recipe, Activation.SILU, Recomputation.ACTIVATION, TokenRows.packed(33, 31)));
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        TransformerLayerConfig config = TransformerLayerConfig.encoder(
                        64, AttentionConfig.of(2, 32, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(64).withActivation(c.activation).withRecomputation(c.recomputation));
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Weights weights = open.draw(parameters);
            TransformerLayerWitness witness = new TransformerLayerWitness(config, weights, c.tokens.rows(), null);
            Pass pass = open.pass();
            pass.autocast(Quantizers.allocate(parameters, c.recipe));
            RealMatrix x = open.normal(DType.BFLOAT16, c.tokens.tokens(), 64, 1);
            RealMatrix dy = open.normal(DType.BFLOAT16, c.tokens.tokens(), 64, 1);
            // The first step finds the scales of delayed scaling, the second uses them.
            step(layer, c, x, dy, pass);
            parameters.nextStep();
            pass.begin(c.tokens.sequences(open.scope()));
            Tensor y = layer.forward(open.tensor(DType.BFLOAT16, x), pass);
            open.assertClose("y", witness.forward(x), y, FORWARD);
            Tensor dx = layer.backward(open.tensor(DType.BFLOAT16, dy), pass);
            open.assertClose("dx", witness.backward(dy), dx, BACKWARD);
            open.assertGradients(parameters, weights, BACKWARD, VECTORS);
            pass.noAutocast();
        }
    }

    private static void step(TransformerLayer layer, Case c, RealMatrix x, RealMatrix dy, Pass pass) {
        pass.begin(c.tokens.sequences(open.scope()));
        layer.forward(open.tensor(DType.BFLOAT16, x), pass);
        layer.backward(open.tensor(DType.BFLOAT16, dy), pass);
    }
}
