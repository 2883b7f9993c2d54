package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Sizes;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Normalization} against double precision: both norms, both meanings of gamma, every combination of types. */
@Tag("L0")
@Tag("L1")
class NormalizationConformance {
    private static final float EPSILON = 1e-5f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** x of {@code input}, z of {@code output}; backward gamma and dz are of {@code output}, too. */
    record Case(Kind kind, DType input, DType output, Gamma gamma, int tokens, int size) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Kind kind : Kind.values()) {
            for (Gamma gamma : Gamma.values()) {
                for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                    for (int tokens : Sizes.TOKENS) {
                        cases.add(new Case(kind, dtype, dtype, gamma, tokens, 64));
                    }
                    for (int size : new int[] {1, 2, 15, 63, 65, 129, 320, 768, 1024}) {
                        cases.add(new Case(kind, dtype, dtype, gamma, 5, size));
                    }
                }
                cases.add(new Case(kind, DType.FLOAT32, DType.BFLOAT16, gamma, 17, 128));
                cases.add(new Case(kind, DType.FLOAT32, DType.FLOAT16, gamma, 17, 129));
            }
        }
        return cases;
    }

    /** A norm's operands and witness; gamma as the kernel reads it, and the factor that the witness multiplies by. */
    private static final class Operands {
        private final Tensor gamma;
        private final Tensor beta;
        private final RealMatrix x;
        private final Weights weights = new Weights();
        private final NormWitness witness;

        Operands(Case c, DType gammaType) {
            x = Rounding.round(open.normal(c.input, c.tokens, c.size, 1).scalarAdd(0.5), c.input);
            RealMatrix drawn = open.normal(gammaType, 1, c.size, 0.2);
            if (c.gamma == Gamma.PLAIN) {
                drawn = Rounding.round(drawn.scalarAdd(1), gammaType);
            }
            double[] added = open.normal(gammaType, c.size, 0.2);
            gamma = open.tensor(gammaType, drawn.getRow(0), c.size);
            beta = open.tensor(gammaType, added, c.size);
            weights.put("weight", c.gamma == Gamma.PLAIN ? drawn : drawn.scalarAdd(1));
            weights.put("bias", MatrixUtils.createRowRealMatrix(added));
            witness = new NormWitness(new NormConfig(c.kind, c.size, EPSILON), weights, "");
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forward(Case c) {
        forward(c, open.unwritten(c.output, c.tokens, c.size));
    }

    private static void forward(Case c, Tensor z) {
        Operands in = new Operands(c, c.input);
        Tensor x = open.tensor(c.input, in.x);
        Tensor mu = open.unwritten(DType.FLOAT32, c.tokens);
        Tensor rsigma = open.unwritten(DType.FLOAT32, c.tokens);
        if (c.kind == Kind.LAYER_NORM) {
            new Normalization(EPSILON, c.gamma)
                    .gamma(in.gamma)
                    .beta(in.beta)
                    .layernormFwd(x, z, mu, rsigma, open.stream());
        } else {
            new Normalization(EPSILON, c.gamma).gamma(in.gamma).rmsnormFwd(x, z, rsigma, open.stream());
        }
        open.assertClose("z", in.witness.forward(in.x), z, Tolerances.rounded(c.output));
        open.assertClose("rsigma", in.witness.inverseDeviation(), rsigma, Tolerances.rounded(DType.FLOAT32));
        if (c.kind == Kind.LAYER_NORM) {
            open.assertClose("mu", in.witness.mean(), mu, Tolerances.rounded(DType.FLOAT32));
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void backward(Case c) {
        backward(c, open.unwritten(c.input, c.tokens, c.size));
    }

    private static void backward(Case c, Tensor dx) {
        Operands in = new Operands(c, c.output);
        RealMatrix dz = open.normal(c.output, c.tokens, c.size, 1);
        in.witness.forward(in.x);
        Tensor x = open.tensor(c.input, in.x);
        Tensor gradient = open.tensor(c.output, dz);
        Tensor mu = statistics(in.witness.mean());
        Tensor rsigma = statistics(in.witness.inverseDeviation());
        Tensor dgamma = open.unwritten(c.output, c.size);
        Tensor dbeta = open.unwritten(c.output, c.size);
        if (c.kind == Kind.LAYER_NORM) {
            new Normalization(0, c.gamma)
                    .gamma(in.gamma)
                    .layernormBwd(gradient, x, mu, rsigma, dx, dgamma, dbeta, open.stream());
        } else {
            new Normalization(0, c.gamma).gamma(in.gamma).rmsnormBwd(gradient, x, rsigma, dx, dgamma, open.stream());
        }
        RealMatrix expected = in.witness.backward(dz);
        // Each element is a difference of numbers as large as those of the row times rsigma.
        double largest = Arrays.stream(in.witness.inverseDeviation()).max().orElse(1);
        open.assertClose("dx", Comparison.entries(expected), open.read(dx), largest, Tolerances.rounded(c.input));
        double magnitude = Math.sqrt(c.tokens);
        open.assertClose(
                "dgamma",
                in.weights.gradient("weight").getRow(0),
                open.read(dgamma),
                magnitude,
                Tolerances.rounded(c.output));
        if (c.kind == Kind.LAYER_NORM) {
            open.assertClose(
                    "dbeta",
                    in.weights.gradient("bias").getRow(0),
                    open.read(dbeta),
                    magnitude,
                    Tolerances.rounded(c.output));
        }
    }

    static List<Case> rmsCases() {
        return cases().stream().filter(c -> c.kind == Kind.RMS_NORM).toList();
    }

    @ParameterizedTest
    @MethodSource("rmsCases")
    void backwardAndSum(Case c) {
        backwardAndSum(c, open.unwritten(c.input, c.tokens, c.size));
    }

    private static void backwardAndSum(Case c, Tensor dx) {
        Operands in = new Operands(c, c.output);
        RealMatrix dz = open.normal(c.output, c.tokens, c.size, 1);
        RealMatrix add = open.normal(c.output, c.tokens, c.size, 1);
        in.witness.forward(in.x);
        Tensor x = open.tensor(c.input, in.x);
        Tensor rsigma = statistics(in.witness.inverseDeviation());
        Tensor dgamma = open.unwritten(c.output, c.size);
        Tensor gradient = open.tensor(c.output, dz);
        Tensor added = open.tensor(c.output, add);
        new Normalization(0, c.gamma)
                .gamma(in.gamma)
                .rmsnormBwdAdd(gradient, x, added, rsigma, dx, dgamma, open.stream());
        RealMatrix expected = in.witness.backward(dz).add(add);
        double largest =
                Math.max(1, Arrays.stream(in.witness.inverseDeviation()).max().orElse(1));
        open.assertClose("dx", Comparison.entries(expected), open.read(dx), largest, Tolerances.rounded(c.input));
        double[] ofGamma = in.weights.gradient("weight").getRow(0);
        open.assertClose("dgamma", ofGamma, open.read(dgamma), Math.sqrt(c.tokens), Tolerances.rounded(c.output));
    }

    /** The workspace that TE wants is remembered: shapes in turn, and one again after a larger one, must not disturb it. */
    @Test
    void shapesInTurn() {
        for (int round = 0; round < 2; round++) {
            for (int size : new int[] {64, 1024, 64, 320}) {
                for (Kind kind : Kind.values()) {
                    Case c = new Case(kind, DType.BFLOAT16, DType.BFLOAT16, Gamma.PLAIN, 5 + size % 7, size);
                    forward(c);
                    backward(c);
                    backward(c);
                }
            }
        }
    }

    /** Over a view TE may run a kernel that needs a workspace of another size than over a tensor of the same shape. */
    @Test
    void tensorsAndViewsInTurn() {
        for (Kind kind : Kind.values()) {
            Case c = new Case(kind, DType.BFLOAT16, DType.BFLOAT16, Gamma.PLAIN, 8, 64);
            for (int offset : new int[] {0, 4, 0, 8, 0}) {
                Tensor written = open.scope().view(open.unwritten(DType.BFLOAT16, 8 * 64 + offset), offset, 8, 64);
                forward(c, written);
                backward(c, written);
                if (kind == Kind.RMS_NORM) {
                    backwardAndSum(c, written);
                }
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void withoutRows(DType dtype) {
        Tensor none = open.scope().tensor(dtype, 0, 64);
        Tensor z = open.scope().tensor(dtype, 0, 64);
        Tensor mu = open.scope().tensor(DType.FLOAT32, 0);
        Tensor rsigma = open.scope().tensor(DType.FLOAT32, 0);
        Tensor gamma = open.tensor(dtype, open.normal(dtype, 64, 1), 64);
        Tensor beta = open.tensor(dtype, open.normal(dtype, 64, 1), 64);
        new Normalization(EPSILON, Gamma.PLAIN)
                .gamma(gamma)
                .beta(beta)
                .layernormFwd(none, z, mu, rsigma, open.stream());
        new Normalization(EPSILON, Gamma.PLAIN).gamma(gamma).rmsnormFwd(none, z, rsigma, open.stream());
        Tensor dx = open.scope().tensor(dtype, 0, 64);
        Tensor dgamma = open.unwritten(dtype, 64);
        Tensor dbeta = open.unwritten(dtype, 64);
        new Normalization(0, Gamma.PLAIN)
                .gamma(gamma)
                .layernormBwd(z, none, mu, rsigma, dx, dgamma, dbeta, open.stream());
        assertArrayEquals(new float[64], open.read(dgamma));
        assertArrayEquals(new float[64], open.read(dbeta));
        Tensor again = open.unwritten(dtype, 64);
        new Normalization(0, Gamma.PLAIN).gamma(gamma).rmsnormBwd(z, none, rsigma, dx, again, open.stream());
        assertArrayEquals(new float[64], open.read(again));
        Tensor sum = open.unwritten(dtype, 64);
        Tensor add = open.scope().tensor(dtype, 0, 64);
        new Normalization(0, Gamma.PLAIN).gamma(gamma).rmsnormBwdAdd(z, none, add, rsigma, dx, sum, open.stream());
        assertArrayEquals(new float[64], open.read(sum));
    }

    @Test
    void makesNoGarbage() {
        Case c = new Case(Kind.LAYER_NORM, DType.BFLOAT16, DType.BFLOAT16, Gamma.ZERO_CENTERED, 16, 64);
        Operands in = new Operands(c, c.input);
        Tensor x = open.tensor(c.input, in.x);
        Tensor z = open.unwritten(c.output, c.tokens, c.size);
        Tensor mu = open.unwritten(DType.FLOAT32, c.tokens);
        Tensor rsigma = open.unwritten(DType.FLOAT32, c.tokens);
        Tensor dx = open.unwritten(c.input, c.tokens, c.size);
        Tensor dgamma = open.unwritten(c.output, c.size);
        Tensor dbeta = open.unwritten(c.output, c.size);
        Normalization norm = new Normalization(EPSILON, c.gamma);
        Allocation.assertNone("norms", () -> {
            norm.gamma(in.gamma).beta(in.beta).layernormFwd(x, z, mu, rsigma, open.stream());
            norm.gamma(in.gamma).layernormBwd(z, x, mu, rsigma, dx, dgamma, dbeta, open.stream());
            norm.gamma(in.gamma).rmsnormFwd(x, z, rsigma, open.stream());
            norm.gamma(in.gamma).rmsnormBwd(z, x, rsigma, dx, dgamma, open.stream());
            norm.gamma(in.gamma).rmsnormBwdAdd(z, x, z, rsigma, dx, dgamma, open.stream());
        });
    }

    private static Tensor statistics(double[] values) {
        return open.tensor(DType.FLOAT32, Rounding.round(values.clone(), DType.FLOAT32), values.length);
    }
}
