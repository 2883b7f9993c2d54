package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.witness.LinearWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Linear} against double precision. */
@Tag("L0")
@Tag("L1")
class LinearConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final DType[] FLOATS = {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16};

    record Case(DType dtype, int tokens, int inputs, int outputs, Bias bias) {
        Case(DType dtype, int tokens, int inputs, int outputs) {
            this(dtype, tokens, inputs, outputs, Bias.PRESENT);
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : FLOATS) {
            for (int tokens : Sizes.TOKENS) {
                cases.add(new Case(dtype, tokens, 64, 128));
            }
            cases.add(new Case(dtype, 128, 16, 16));
            cases.add(new Case(dtype, 33, 256, 48));
            cases.add(new Case(dtype, 1, 1, 1));
            cases.add(new Case(dtype, 17, 3, 5));
            cases.add(new Case(dtype, 63, 65, 127));
            cases.add(new Case(dtype, 129, 15, 129));
            cases.add(new Case(dtype, 33, 64, 128, Bias.ABSENT));
            cases.add(new Case(dtype, 17, 3, 5, Bias.ABSENT));
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(c.inputs, c.outputs, c.bias, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            LinearWitness witness = new LinearWitness(weights, "");
            RealMatrix x = open.normal(c.dtype, c.tokens, c.inputs, 1);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.outputs, 1);
            Tensor input = open.tensor(c.dtype, x);
            Tensor y = linear.forward(input, open.pass());
            assertEquals(Shape.of(c.tokens, c.outputs), y.shape());
            open.assertClose("y", witness.forward(x), y, Tolerances.product(c.dtype));
            Tensor dx = linear.backward(open.tensor(c.dtype, dy), open.pass());
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.product(c.dtype));
            Tolerance tolerance = Tolerances.weightGradient(c.dtype);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    @Test
    void withoutBiasThereIsNone() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(3, 5, Bias.ABSENT, Initializer.zeros(), plan.child("free"));
        assertEquals(List.of(linear.weight()), plan.parameters());
        assertFalse(linear.hasBias());
        assertThrown(
                IllegalStateException.class,
                "free has no bias, for it was made with Bias.ABSENT; ask hasBias() first",
                linear::bias);
        Linear tied = Linear.tied(linear.weight(), Bias.ABSENT, plan.child("tied"));
        assertFalse(tied.hasBias());
        assertEquals(1, plan.parameters().size());
        linear.weight().freeze();
        assertFalse(linear.requiresGradient());
        assertTrue(new Linear(3, 5, Initializer.zeros(), plan.child("usual")).hasBias());
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void gradientsAddUpInFp32(DType dtype) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 32, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            LinearWitness witness = new LinearWitness(weights, "");
            RealMatrix dweight = null;
            RealMatrix dbias = null;
            for (int step = 0; step < 4; step++) {
                RealMatrix x = open.normal(dtype, 33, 16, 1);
                RealMatrix dy = open.normal(dtype, 33, 32, 1);
                witness.forward(x);
                witness.backward(dy);
                dweight = step == 0 ? weights.gradient("weight") : dweight.add(weights.gradient("weight"));
                dbias = step == 0 ? weights.gradient("bias") : dbias.add(weights.gradient("bias"));
                linear.forward(open.tensor(dtype, x), open.pass().begin());
                linear.backward(open.tensor(dtype, dy), open.pass());
            }
            Tolerance tolerance = Tolerances.weightGradient(dtype);
            open.assertClose("gradient of weight", dweight, linear.weight().gradient(), tolerance);
            open.assertClose("gradient of bias", dbias, linear.bias().gradient(), tolerance);
        }
    }

    @Test
    void overwritingForgetsWhatWasThere() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 16, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            float[] nan = new float[(int) parameters.gradients().count()];
            java.util.Arrays.fill(nan, Float.NaN);
            parameters.gradients().set(open.stream(), nan);
            Weights weights = open.draw(parameters);
            LinearWitness witness = new LinearWitness(weights, "");
            RealMatrix x = open.normal(DType.BFLOAT16, 16, 16, 1);
            witness.forward(x);
            witness.backward(x);
            Tensor input = open.tensor(DType.BFLOAT16, x);
            linear.forward(input, open.pass());
            linear.backward(input, open.pass());
            Tolerance tolerance = Tolerances.weightGradient(DType.BFLOAT16);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    /** The table's gradient comes from both uses; the product is over a weight that it did not declare. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void aTiedWeightGathersBothGradients(DType dtype) {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(32, 16, Initializer.zeros(), plan.child("table"));
        Linear head = Linear.tied(embedding.weight(), plan.child("head"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            Weights view = new Weights();
            view.put("weight", weights.get("table.weight"));
            view.put("bias", weights.get("head.bias"));
            LinearWitness witness = new LinearWitness(view, "");
            RealMatrix x = open.normal(dtype, 5, 16, 1);
            RealMatrix dy = open.normal(dtype, 5, 32, 1);
            Tensor ids = open.scope().tensor(DType.INT32, 5);
            ids.set(open.stream(), 3, 3, 31, 0, 7);
            Pass pass = open.pass();
            embedding.forward(ids, pass);
            Tensor y = head.forward(open.tensor(dtype, x), pass);
            open.assertClose("y", witness.forward(x), y, Tolerances.product(dtype));
            Tensor dx = head.backward(open.tensor(dtype, dy), pass);
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.product(dtype));
            embedding.backward(open.tensor(dtype, x), pass);
            RealMatrix expected = view.gradient("weight").copy();
            int[] rows = {3, 3, 31, 0, 7};
            for (int token = 0; token < rows.length; token++) {
                expected.setRowVector(
                        rows[token], expected.getRowVector(rows[token]).add(x.getRowVector(token)));
            }
            open.assertClose(
                    "gradient of the table", expected, embedding.weight().gradient(), Tolerances.weightGradient(dtype));
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void nanAndInfinityGoWhereArithmeticSendsThem(DType dtype) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 16, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            LinearWitness witness = new LinearWitness(weights, "");
            RealMatrix x = open.normal(dtype, 17, 16, 1);
            RealMatrix dy = open.normal(dtype, 17, 16, 1);
            x.setEntry(3, 5, Double.NaN);
            x.setEntry(16, 0, Double.POSITIVE_INFINITY);
            dy.setEntry(8, 2, Double.NEGATIVE_INFINITY);
            Tensor y = linear.forward(open.tensor(dtype, x), open.pass());
            open.assertClose("y", witness.forward(x), y, Tolerances.product(dtype));
            Tensor dx = linear.backward(open.tensor(dtype, dy), open.pass());
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.product(dtype));
            Tolerance tolerance = Tolerances.weightGradient(dtype);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    @Test
    void theSameCallGivesTheSameBits() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(64, 64, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 129, 64, 1));
            Pass pass = open.pass();
            Tensor first = linear.forward(x, pass);
            Tensor dx = linear.backward(x, pass);
            float[] gradients = open.read(parameters.gradients());
            Tensor second = linear.forward(x, pass);
            assertArrayEquals(open.read(first), open.read(second));
            parameters.forgetGradients();
            Tensor again = linear.backward(x, pass);
            assertArrayEquals(open.read(dx), open.read(again));
            assertArrayEquals(gradients, open.read(parameters.gradients()));
        }
    }

    @Test
    void noTokensGiveNoRowsAndZeroGradients() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 16, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Scope scope = open.scope();
            Tensor x = scope.tensor(DType.BFLOAT16, 0, 16);
            Pass pass = open.pass();
            float[] ones = new float[(int) parameters.gradients().count()];
            java.util.Arrays.fill(ones, 1);
            parameters.completeGradients();
            parameters.gradients().set(open.stream(), ones);
            assertEquals(Shape.of(0, 16), linear.forward(x, pass).shape());
            linear.backward(scope.like(x), pass);
            assertArrayEquals(ones, open.read(parameters.gradients()), "a later backward adds nothing");
            parameters.nextStep();
            linear.forward(x, pass);
            linear.backward(scope.like(x), pass);
            assertArrayEquals(new float[256], open.read(linear.weight().gradient()));
            assertArrayEquals(new float[16], open.read(linear.bias().gradient()));
        }
    }
}
