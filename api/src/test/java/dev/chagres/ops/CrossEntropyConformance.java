package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.witness.CrossEntropyWitness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code CrossEntropy} against double precision: padding columns, tokens left out, a divisor of its own. */
@Tag("L0")
@Tag("L1")
class CrossEntropyConformance {
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int tokens, int classes, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int[] size : new int[][] {{1, 1, 1}, {3, 5, 8}, {65, 33, 64}, {200, 129, 129}, {17, 5000, 5003}}) {
                cases.add(new Case(dtype, size[0], size[1], size[2]));
            }
        }
        return cases;
    }

    /** The tensors of one call; one token in three is left out. */
    private static final class Run {
        private final Case c;
        private final RealMatrix z;
        private final int[] values;
        private final Tensor logits;
        private final Tensor labels;
        private final Tensor logSumExp;
        private final Tensor loss = open.unwritten(DType.FLOAT32, 1);
        private final Tensor counted = open.ints(-7);
        private final CrossEntropyWitness witness;
        private final CrossEntropy entropy;

        Run(Case c) {
            this.c = c;
            z = open.normal(c.dtype, c.tokens, c.columns, 3);
            values = open.random().ints(c.tokens, 0, c.classes).toArray();
            for (int token = 1; token < c.tokens; token += 3) {
                values[token] = token % 2 == 0 ? -100 : c.classes;
            }
            logits = open.tensor(c.dtype, z);
            labels = open.ints(values);
            logSumExp = open.unwritten(DType.FLOAT32, c.tokens);
            witness = new CrossEntropyWitness(z, values, c.classes);
            entropy = new CrossEntropy(c.classes, 0);
        }

        void forward(@Nullable Tensor divisor) {
            entropy.forward(logits, labels, divisor, logSumExp, null, loss, counted, open.stream());
        }

        void assertGradient(Tensor divisor, float factor, double expectedFactor) {
            Tensor dlogits = open.unwritten(c.dtype, c.tokens, c.columns);
            entropy.backward(
                    logits,
                    labels,
                    logSumExp,
                    divisor,
                    new CrossEntropy.Factors(factor, null, null),
                    dlogits,
                    open.stream());
            RealMatrix expected = witness.gradient(expectedFactor);
            open.assertClose(
                    "dlogits",
                    Comparison.entries(expected),
                    open.read(dlogits),
                    Math.abs(expectedFactor) / Math.max(1, witness.counted()) / 10,
                    Tolerances.rounded(c.dtype));
            entropy.backward(
                    logits,
                    labels,
                    logSumExp,
                    divisor,
                    new CrossEntropy.Factors(factor, null, null),
                    logits,
                    open.stream());
            assertArrayEquals(open.read(dlogits), open.read(logits), "in the place of the logits");
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void meanOverCountedTokens(Case c) {
        Run run = new Run(c);
        run.forward(null);
        open.assertClose("logSumExp", run.witness.logSumExp(), run.logSumExp, Tolerances.rounded(DType.FLOAT32));
        open.assertClose(
                "loss", new double[] {run.witness.loss()}, run.loss, Tolerances.weightGradient(DType.BFLOAT16));
        assertEquals(run.witness.counted(), run.counted.toInts(open.stream())[0]);
        run.assertGradient(run.counted, -0.5f, -0.5);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aDivisorOfItsOwn(Case c) {
        Run run = new Run(c);
        Tensor divisor = open.ints(1000);
        run.forward(divisor);
        double share = run.witness.counted() / 1000.0;
        open.assertClose(
                "loss", new double[] {run.witness.loss() * share}, run.loss, Tolerances.weightGradient(DType.BFLOAT16));
        assertEquals(run.witness.counted(), run.counted.toInts(open.stream())[0]);
        run.assertGradient(divisor, 2, 2 * share);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void smoothedLossesByToken(Case c) {
        Run run = new Run(c);
        for (float smoothing : new float[] {0, 0.1f, 1}) {
            CrossEntropyWitness witness = new CrossEntropyWitness(run.z, run.values, c.classes, smoothing);
            Tensor losses = open.unwritten(DType.FLOAT32, c.tokens);
            new CrossEntropy(c.classes, smoothing)
                    .forward(run.logits, run.labels, null, run.logSumExp, losses, run.loss, run.counted, open.stream());
            Tolerance sums = new Tolerance("cross-entropy of a token, in FP32", 2e-6, 2e-5);
            open.assertClose("losses", witness.losses(), open.read(losses), 1, sums);
            open.assertClose("loss", new double[] {witness.loss()}, open.read(run.loss), 1, sums);
            double[] gradients = open.normal(DType.FLOAT32, c.tokens, 1);
            double[] scaled = Arrays.stream(gradients).map(g -> -0.5 * 1024 * g).toArray();
            Tensor dlogits = open.unwritten(c.dtype, c.tokens, c.columns);
            new CrossEntropy(c.classes, smoothing)
                    .backward(
                            run.logits,
                            run.labels,
                            run.logSumExp,
                            null,
                            new CrossEntropy.Factors(
                                    -0.5f,
                                    open.tensor(DType.FLOAT32, new double[] {1024}, 1),
                                    open.tensor(DType.FLOAT32, gradients, c.tokens)),
                            dlogits,
                            open.stream());
            open.assertClose(
                    "dlogits",
                    Comparison.entries(witness.gradient(scaled)),
                    open.read(dlogits),
                    50,
                    Tolerances.rounded(c.dtype));
        }
    }

    @Test
    void aDivisorOfNothing() {
        Run run = new Run(new Case(DType.FLOAT32, 4, 3, 3));
        Tensor divisor = open.ints(0);
        run.forward(divisor);
        assertEquals(0, open.read(run.loss)[0]);
        run.assertGradient(divisor, 1, 0);
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void withoutTokensOrLabels(DType dtype) {
        Tensor none = open.scope().tensor(dtype, 0, 8);
        Tensor labels = open.scope().tensor(DType.INT32, 0);
        Tensor logSumExp = open.scope().tensor(DType.FLOAT32, 0);
        Tensor loss = open.unwritten(DType.FLOAT32, 1);
        Tensor counted = open.ints(-7);
        new CrossEntropy(8, 0).forward(none, labels, null, logSumExp, null, loss, counted, open.stream());
        assertEquals(0, open.read(loss)[0]);
        assertEquals(0, counted.toInts(open.stream())[0]);
        new CrossEntropy(8, 0)
                .backward(none, labels, logSumExp, counted, CrossEntropy.Factors.one(), none, open.stream());

        Tensor logits = open.tensor(dtype, open.normal(dtype, 2, 8, 1));
        Tensor out = open.ints(-100, 8);
        Tensor sums = open.unwritten(DType.FLOAT32, 2);
        new CrossEntropy(8, 0).forward(logits, out, null, sums, null, loss, counted, open.stream());
        assertEquals(0, open.read(loss)[0]);
        Tensor gradient = open.unwritten(dtype, 2, 8);
        new CrossEntropy(8, 0)
                .backward(logits, out, sums, counted, CrossEntropy.Factors.one(), gradient, open.stream());
        assertArrayEquals(new float[16], open.read(gradient));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(
            String text, Tensor logits, Tensor labels, long classes, Tensor logSumExp, Tensor loss, Tensor counted) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new CrossEntropy(classes, 0)
                        .forward(logits, labels, null, logSumExp, null, loss, counted, open.stream()));
    }

    @Test
    void refusals() {
        Tensor z = of(DType.FLOAT32, 4, 8);
        Tensor labels = of(DType.INT32, 4);
        Tensor sums = of(DType.FLOAT32, 4);
        Tensor loss = of(DType.FLOAT32, 1);
        Tensor counted = of(DType.INT32, 1);
        refused("classes: expected at least 1, got 0", z, labels, 0, sums, loss, counted);
        refused(
                "logits: expected [T, at least 9 columns] of floats, got FLOAT32[4, 8]",
                z,
                labels,
                9,
                sums,
                loss,
                counted);
        refused("labels: expected INT32[4], got INT32[5]", z, of(DType.INT32, 5), 8, sums, loss, counted);
        refused("logSumExp: expected FLOAT32[4], got FLOAT32[1]", z, labels, 8, loss, loss, counted);
        refused("counted: expected INT32[1], got FLOAT32[1]", z, labels, 8, sums, loss, loss);
        refused(
                "loss: expected memory of its own, got some of logSumExp" + SHARED,
                z,
                labels,
                8,
                sums,
                open.scope().view(sums, 1, 1),
                counted);
        refused(
                "counted: expected memory of its own, got some of labels" + SHARED,
                z,
                labels,
                8,
                sums,
                loss,
                open.scope().view(labels, 3, 1));
        assertThrown(
                IllegalArgumentException.class,
                "counted: expected memory of its own, got some of divisor" + SHARED,
                () -> new CrossEntropy(8, 0).forward(z, labels, counted, sums, null, loss, counted, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "divisor: expected INT32[1], got INT32[4]",
                () -> new CrossEntropy(8, 0).forward(z, labels, labels, sums, null, loss, counted, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "factor: expected a finite number, got NaN",
                () -> new CrossEntropy(8, 0)
                        .backward(
                                z,
                                labels,
                                sums,
                                counted,
                                new CrossEntropy.Factors(Float.NaN, null, null),
                                z,
                                open.stream()));
        refusedWithMore("labelSmoothing: expected 0 to 1, got 1.5", 1.5f, null, loss);
        refusedWithMore("labelSmoothing: expected 0 to 1, got NaN", Float.NaN, null, loss);
        refusedWithMore("tokenLosses: expected FLOAT32[4], got FLOAT32[1]", 0, loss, of(DType.FLOAT32, 1));
        Tensor losses = of(DType.FLOAT32, 4);
        refusedWithMore(
                "tokenLosses: expected memory of its own, got some of loss" + SHARED,
                0,
                losses,
                open.scope().view(losses, 0, 1));
        refusedBackward("lossScale: expected FLOAT32[1], got FLOAT32[4]", 0, losses, null);
        refusedBackward("tokenGradients: expected FLOAT32[4], got FLOAT32[1]", 0, null, loss);
        refusedBackward("labelSmoothing: expected 0 to 1, got -1.0", -1, null, null);
        assertThrown(
                IllegalArgumentException.class,
                "dlogits: expected FLOAT32[4, 8], got FLOAT32[4, 7]",
                () -> new CrossEntropy(8, 0)
                        .backward(
                                z,
                                labels,
                                sums,
                                counted,
                                CrossEntropy.Factors.one(),
                                of(DType.FLOAT32, 4, 7),
                                open.stream()));
    }

    private static void refusedWithMore(String text, float smoothing, @Nullable Tensor tokenLosses, Tensor loss) {
        Tensor z = of(DType.FLOAT32, 4, 8);
        Tensor labels = of(DType.INT32, 4);
        Tensor sums = of(DType.FLOAT32, 4);
        Tensor counted = of(DType.INT32, 1);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new CrossEntropy(8, smoothing)
                        .forward(z, labels, null, sums, tokenLosses, loss, counted, open.stream()));
    }

    private static void refusedBackward(
            String text, float smoothing, @Nullable Tensor lossScale, @Nullable Tensor tokenGradients) {
        Tensor z = of(DType.FLOAT32, 4, 8);
        Tensor labels = of(DType.INT32, 4);
        Tensor sums = of(DType.FLOAT32, 4);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new CrossEntropy(8, smoothing)
                        .backward(
                                z,
                                labels,
                                sums,
                                null,
                                new CrossEntropy.Factors(1, lossScale, tokenGradients),
                                z,
                                open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Run run = new Run(new Case(DType.BFLOAT16, 4, 8, 8));
        Tensor dlogits = open.unwritten(DType.BFLOAT16, 4, 8);
        CrossEntropy entropy = new CrossEntropy(8, 0);
        CrossEntropy.Factors factors = CrossEntropy.Factors.one();
        Allocation.assertNone("cross-entropy", () -> {
            run.forward(null);
            entropy.backward(run.logits, run.labels, run.logSumExp, run.counted, factors, dlogits, open.stream());
        });
    }
}
