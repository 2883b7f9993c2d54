package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.layer.Accumulation;
import dev.chagres.layer.FeedForwardConfig;
import dev.chagres.layer.FeedForwardConfig.Activation;
import dev.chagres.layer.FeedForwardConfig.Recomputation;
import dev.chagres.layer.Gelu;
import dev.chagres.layer.Initializer;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.layer.ParameterPlan;
import dev.chagres.layer.Parameters;
import dev.chagres.witness.GeluWitness;
import dev.chagres.witness.MlpWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code LayerNormMlp} and {@code Gelu} against double precision. */
@Tag("L0")
@Tag("L1")
class MlpConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, Kind kind, Recomputation recomputation, int tokens, int hidden, int inner) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Recomputation recomputation : Recomputation.values()) {
                for (int tokens : new int[] {1, 15, 16, 17, 65, 129}) {
                    cases.add(new Case(dtype, Kind.LAYER_NORM, recomputation, tokens, 64, 128));
                }
                cases.add(new Case(dtype, Kind.RMS_NORM, recomputation, 33, 32, 48));
                cases.add(new Case(dtype, Kind.LAYER_NORM, recomputation, 17, 33, 65));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        NormConfig norm = new NormConfig(c.kind, c.hidden, 1e-5f);
        FeedForwardConfig config = new FeedForwardConfig(
                norm, c.inner, Activation.GELU, c.recomputation, Initializer.zeros(), Initializer.zeros());
        ParameterPlan plan = new ParameterPlan();
        LayerNormMlp mlp = new LayerNormMlp(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            MlpWitness witness = new MlpWitness(norm, weights, "");
            RealMatrix x = open.normal(c.dtype, c.tokens, c.hidden, 1);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.hidden, 1);
            LayerNormMlp.Saved saved = mlp.forward(open.tensor(c.dtype, x), open.scope());
            open.assertClose("y", witness.forward(x), saved.output(), Tolerances.layer(c.dtype));
            if (c.recomputation == Recomputation.ACTIVATION) {
                assertNull(saved.activated());
            } else {
                assertEquals(Shape.of(c.tokens, c.inner), saved.activated().shape());
            }
            Tensor dx = mlp.backward(open.tensor(c.dtype, dy), saved, Accumulation.OVERWRITE, open.scope());
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.layer(c.dtype));
            Tolerance tolerance = Tolerances.layer(c.dtype);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void gelu(DType dtype) {
        RealMatrix x = open.normal(dtype, 65, 48, 2);
        RealMatrix dy = open.normal(dtype, 65, 48, 1);
        GeluWitness witness = new GeluWitness();
        Tensor input = open.tensor(dtype, x);
        open.assertClose("y", witness.forward(x), Gelu.forward(input, open.scope()), Tolerances.rounded(dtype));
        open.assertClose(
                "dx",
                witness.backward(dy),
                Gelu.backward(open.tensor(dtype, dy), input, open.scope()),
                Tolerances.rounded(dtype));
    }

    /** Far from 0 the function is x or 0, its derivative 1 or 0; infinities and NaN go the same way. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void geluFarFromZero(DType dtype) {
        double[] values = {0, -0.0, 10, -10, 100, -100, 60000, -60000, 1, -1, Double.NaN, 5, -5, 0.5, -0.5, 1e-4};
        RealMatrix x = MatrixUtils.createRowRealMatrix(dev.chagres.witness.Rounding.round(values, dtype));
        GeluWitness witness = new GeluWitness();
        Tensor input = open.tensor(dtype, x);
        open.assertClose("y", witness.forward(x), Gelu.forward(input, open.scope()), Tolerances.rounded(dtype));
        RealMatrix dy =
                MatrixUtils.createRowRealMatrix(new double[values.length]).scalarAdd(1);
        open.assertClose(
                "dx",
                witness.backward(dy),
                Gelu.backward(open.tensor(dtype, dy), input, open.scope()),
                Tolerances.rounded(dtype));
    }
}
