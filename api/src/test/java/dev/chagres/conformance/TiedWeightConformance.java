package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A table that an embedding reads and a head multiplies by, {@code y[t, c] = table[ids[t]] . table[c] + bias[c]}: with both, the
 * head or the embedding frozen, its gradients are the differences of the loss {@code sum of dy y} in double precision.
 */
@Tag("L0")
@Tag("L1")
class TiedWeightConformance {
    private static final int ROWS = 32;
    private static final int COLUMNS = 16;
    private static final int[] IDS = {3, 3, 31, 0, 7};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    enum Frozen {
        NOTHING,
        HEAD,
        EMBEDDING
    }

    record Case(DType dtype, Frozen frozen) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Frozen frozen : Frozen.values()) {
                cases.add(new Case(dtype, frozen));
            }
        }
        return cases;
    }

    private static double loss(RealMatrix table, RealMatrix bias, RealMatrix dy) {
        double loss = 0;
        for (int t = 0; t < IDS.length; t++) {
            for (int c = 0; c < ROWS; c++) {
                double y = bias.getEntry(0, c);
                for (int i = 0; i < COLUMNS; i++) {
                    y += table.getEntry(IDS[t], i) * table.getEntry(c, i);
                }
                loss += dy.getEntry(t, c) * y;
            }
        }
        return loss;
    }

    /** The loss is a polynomial of second degree in each number: central differences are its gradient, whatever the step. */
    private static RealMatrix differences(RealMatrix of, RealMatrix table, RealMatrix bias, RealMatrix dy) {
        RealMatrix gradient = new BlockRealMatrix(of.getRowDimension(), of.getColumnDimension());
        for (int row = 0; row < of.getRowDimension(); row++) {
            for (int column = 0; column < of.getColumnDimension(); column++) {
                double value = of.getEntry(row, column);
                of.setEntry(row, column, value + 0.5);
                double above = loss(table, bias, dy);
                of.setEntry(row, column, value - 0.5);
                gradient.setEntry(row, column, above - loss(table, bias, dy));
                of.setEntry(row, column, value);
            }
        }
        return gradient;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void gradientsAreDifferencesOfTheLoss(Case c) {
        ModelPlan plan = new ModelPlan();
        ModelPlan head = plan.child("head");
        Embedding embedding = new Embedding(ROWS, COLUMNS, Initializer.zeros(), plan.child("embedding"));
        Linear linear = Linear.tied(embedding.weight(), head);
        switch (c.frozen) {
            case NOTHING -> {}
            case HEAD -> head.freeze();
            case EMBEDDING -> plan.child("embedding").freeze();
        }
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            RealMatrix table = weights.get("embedding.weight").copy();
            RealMatrix bias = weights.get("head.bias").copy();
            RealMatrix dy = open.normal(c.dtype, IDS.length, ROWS, 1);
            Tensor ids = open.scope().tensor(DType.INT32, IDS.length);
            ids.set(open.stream(), IDS);
            Pass pass = open.pass();
            linear.forward(embedding.forward(ids, pass), pass);
            embedding.backward(linear.backward(open.tensor(c.dtype, dy), pass), pass);
            assertEquals(c.frozen == Frozen.EMBEDDING, embedding.weight().isFrozen());
            assertEquals(c.frozen == Frozen.HEAD, linear.bias().isFrozen());
            Tolerance tolerance = Tolerances.layer(c.dtype);
            if (c.frozen == Frozen.EMBEDDING) {
                assertFalse(embedding.weight().hasGradient(), "the head's share is not computed either");
            } else {
                RealMatrix expected = differences(table, table, bias, dy);
                open.assertClose(
                        "gradient of the table", expected, embedding.weight().gradient(), tolerance);
                assertTrue(expected.getNorm() > 1, "the test looks at something");
            }
            if (c.frozen != Frozen.HEAD) {
                open.assertClose(
                        "gradient of the bias",
                        differences(bias, table, bias, dy),
                        linear.bias().gradient(),
                        tolerance);
            }
        }
    }
}
