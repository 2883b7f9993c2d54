package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.layer.Embedding;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Embedding} against plain sums in double precision. */
@Tag("L0")
@Tag("L1")
class EmbeddingConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int tokens, int vocabulary, int hidden) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int tokens : Sizes.TOKENS) {
                cases.add(new Case(dtype, tokens, 64, 48));
            }
            for (int hidden : new int[] {1, 7, 31, 33, 320, 1025}) {
                cases.add(new Case(dtype, 100, 33, hidden));
            }
            cases.add(new Case(dtype, 300, 1, 17));
            cases.add(new Case(dtype, 3, 1000, 17));
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(c.vocabulary, c.hidden, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            RealMatrix table = open.draw(parameters).get("weight");
            int[] ids = open.random().ints(c.tokens, -1, c.vocabulary + 1).toArray();
            RealMatrix y = new BlockRealMatrix(c.tokens, c.hidden);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.hidden, 1);
            RealMatrix gradient = new BlockRealMatrix(c.vocabulary, c.hidden);
            for (int token = 0; token < c.tokens; token++) {
                if (ids[token] >= 0 && ids[token] < c.vocabulary) {
                    y.setRowVector(token, table.getRowVector(ids[token]));
                    gradient.setRowVector(
                            ids[token], gradient.getRowVector(ids[token]).add(dy.getRowVector(token)));
                }
            }
            Tensor identifiers = open.scope().tensor(DType.INT32, c.tokens);
            identifiers.set(open.stream(), ids);
            Tensor output = embedding.forward(identifiers, open.pass());
            assertEquals(c.dtype, output.dtype());
            open.assertClose("y", y, output, new Tolerance("copied", 0, 0));
            Tensor upstream = open.tensor(c.dtype, dy);
            embedding.backward(upstream, open.pass());
            Tolerance tolerance = Tolerances.rounded(DType.FLOAT32);
            open.assertClose("gradient", gradient, embedding.weight().gradient(), tolerance);
            embedding.forward(identifiers, open.pass());
            embedding.backward(upstream, open.pass());
            open.assertClose(
                    "twice", gradient.scalarMultiply(2), embedding.weight().gradient(), tolerance);
        }
    }

    @Test
    void nanStaysInItsRow() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(4, 2, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            parameters
                    .all()
                    .getFirst()
                    .weight()
                    .set(open.stream(), 0, 1f, Float.NaN, 3, 4, 5, Float.POSITIVE_INFINITY, 7);
            Tensor ids = open.scope().tensor(DType.INT32, 3);
            ids.set(open.stream(), 3, 1, 0);
            assertArrayEquals(
                    new float[] {Float.POSITIVE_INFINITY, 7, Float.NaN, 3, 0, 1},
                    open.read(embedding.forward(ids, open.pass())));
            Tensor dy = open.scope().tensor(DType.BFLOAT16, 3, 2);
            dy.set(open.stream(), 1, 2f, Float.NaN, 4, 5, 6);
            embedding.backward(dy, open.pass());
            assertArrayEquals(
                    new float[] {5, 6, Float.NaN, 4, 0, 0, 1, 2},
                    open.read(embedding.weight().gradient()));
        }
    }

    @Test
    void noTokensGiveNoRowsAndZeroGradients() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(4, 8, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Tensor ids = open.scope().tensor(DType.INT32, 0);
            float[] ones = new float[32];
            java.util.Arrays.fill(ones, 1);
            parameters.gradients().set(open.stream(), ones);
            Tensor y = embedding.forward(ids, open.pass());
            assertEquals(0, y.count());
            embedding.backward(y, open.pass());
            assertArrayEquals(new float[32], open.read(parameters.gradients()));
        }
    }

    @Test
    void theSameCallGivesTheSameBits() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(8, 64, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Tensor ids = open.scope().tensor(DType.INT32, 2000);
            ids.set(open.stream(), open.random().ints(2000, 0, 8).toArray());
            Tensor dy = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 2000, 64, 1));
            embedding.forward(ids, open.pass());
            embedding.backward(dy, open.pass());
            float[] first = open.read(parameters.gradients());
            for (int i = 0; i < 5; i++) {
                parameters.nextStep();
                embedding.forward(ids, open.pass());
                embedding.backward(dy, open.pass());
                assertArrayEquals(first, open.read(parameters.gradients()));
            }
        }
    }

    @Test
    void refusesWhatDoesNotFit() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(4, 8, Initializer.normal(1), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Tensor ids = open.scope().tensor(DType.INT32, 3);
            assertThrown(
                    IllegalArgumentException.class,
                    "ids: expected INT32[T], got BFLOAT16[4, 8]",
                    () -> embedding.forward(embedding.weight().weight(), open.pass()));
            embedding.forward(ids, open.pass());
            assertThrown(
                    IllegalArgumentException.class,
                    "dy: expected BFLOAT16[T, 8], got FLOAT32[3, 8]",
                    () -> embedding.backward(open.scope().tensor(DType.FLOAT32, 3, 8), open.pass()));
            assertThrown(
                    IllegalArgumentException.class,
                    "dy: expected BFLOAT16[3, 8], got BFLOAT16[2, 8]",
                    () -> embedding.backward(open.scope().tensor(DType.BFLOAT16, 2, 8), open.pass()));
            assertEquals(DType.BFLOAT16, parameters.weights().dtype());
        }
    }
}
