package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.witness.CrossEntropyWitness;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code CrossEntropy} against double precision. */
@Tag("L0")
@Tag("L1")
class CrossEntropyConformance {
    private static final int IGNORED = -100;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int tokens, int classes, int columns, double spread) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int tokens : Sizes.TOKENS) {
                cases.add(new Case(dtype, tokens, 33, 64, 1));
            }
            for (int classes : new int[] {1, 2, 31, 32, 127, 128, 129, 1000}) {
                cases.add(new Case(dtype, 17, classes, classes, 3));
                cases.add(new Case(dtype, 17, classes, classes + 7, 3));
            }
            cases.add(new Case(dtype, 65, 33, 64, 50));
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        RealMatrix logits = open.normal(c.dtype, c.tokens, c.columns, c.spread);
        int[] labels = new int[c.tokens];
        for (int token = 0; token < c.tokens; token++) {
            labels[token] =
                    open.random().nextInt(4) == 0 ? IGNORED : open.random().nextInt(c.classes);
        }
        check(c, logits, labels);
    }

    /** Checks loss and gradient, and returns the loss. */
    private static float check(Case c, RealMatrix logits, int[] labels) {
        CrossEntropyWitness witness = new CrossEntropyWitness(logits, labels, c.classes);
        CrossEntropy crossEntropy = new CrossEntropy(c.classes);
        Tensor scores = open.tensor(c.dtype, logits);
        Tensor targets = labels(labels);
        float loss = open.read(crossEntropy.forward(scores, targets, open.pass()))[0];
        checkKept(c.classes, scores, targets, loss, witness);
        double spread = 1 + c.spread;
        assertEquals(witness.loss(), loss, 2e-6 * spread * (1 + Math.log(c.classes)));
        RealMatrix gradient = witness.gradient(0.5);
        Tensor actual = crossEntropy.backward(0.5f, open.pass());
        assertSame(scores, actual, "the gradient takes the place of the logits");
        // A token that is nearly certain has a gradient p - 1 near 0: its error is that of p, 1e-7.
        if (gradient.getFrobeniusNorm() > 1e-2) {
            Tolerance tolerance = c.spread > 10 && c.dtype == DType.FLOAT32
                    ? new Tolerance("cross-entropy FLOAT32, logits of 50", 1e-5, 1e-4)
                    : Tolerances.rounded(c.dtype);
            open.assertClose("dlogits", gradient, actual, tolerance);
        } else {
            float[] values = open.read(actual);
            for (int i = 0; i < values.length; i++) {
                assertEquals(gradient.getEntry(i / c.columns, i % c.columns), values[i], 1e-6);
            }
        }
        return loss;
    }

    /** What the loss keeps for backward, from the call that it makes. */
    private static void checkKept(int classes, Tensor scores, Tensor targets, float loss, CrossEntropyWitness witness) {
        Tensor logSumExp = logSumExp(classes, scores, targets, loss, witness.counted());
        open.assertClose("log-sum-exp", witness.logSumExp(), logSumExp, Tolerances.rounded(DType.FLOAT32));
    }

    private static Tensor logSumExp(int classes, Tensor scores, Tensor targets, float loss, int counted) {
        Tensor logSumExp = open.scope().tensor(DType.FLOAT32, scores.size(0));
        Tensor again = open.scope().tensor(DType.FLOAT32, 1);
        Tensor count = open.scope().tensor(DType.INT32, 1);
        new dev.chagres.ops.CrossEntropy(classes, 0)
                .forward(scores, targets, null, logSumExp, null, again, count, open.stream());
        assertEquals(loss, open.read(again)[0]);
        assertArrayEquals(new int[] {counted}, count.toInts(open.stream()));
        return logSumExp;
    }

    private static Tensor labels(int... labels) {
        Tensor tensor = open.scope().tensor(DType.INT32, labels.length);
        tensor.set(open.stream(), labels);
        return tensor;
    }

    @Test
    void onlyLabelledTokensCount() {
        RealMatrix logits = open.normal(DType.BFLOAT16, 6, 8, 1);
        Case c = new Case(DType.BFLOAT16, 6, 5, 8, 1);
        check(c, logits, new int[] {4, 5, 7, -1, Integer.MAX_VALUE, Integer.MIN_VALUE});
        int[] none = {-1, -1, -1, -1, -1, 5};
        assertEquals(0, check(c, logits, none), "no token is labelled");
        CrossEntropy crossEntropy = new CrossEntropy(5);
        crossEntropy.forward(open.tensor(DType.BFLOAT16, logits), labels(none), open.pass());
        assertArrayEquals(new float[48], open.read(crossEntropy.backward(open.pass())));
    }

    @Test
    void nanStaysWithItsTokenButSpoilsTheMean() {
        RealMatrix logits = open.normal(DType.FLOAT32, 3, 8, 1);
        logits.setEntry(1, 2, Double.NaN);
        logits.setEntry(2, 7, Double.NaN);
        CrossEntropy loss = new CrossEntropy(7);
        Tensor scores = open.tensor(DType.FLOAT32, logits);
        Tensor targets = labels(0, 1, 2);
        assertEquals(Float.NaN, open.read(loss.forward(scores, targets, open.pass()))[0]);
        float[] sums = open.read(logSumExp(7, scores, targets, Float.NaN, 3));
        assertEquals(false, Float.isNaN(sums[0]));
        assertEquals(true, Float.isNaN(sums[1]));
        assertEquals(false, Float.isNaN(sums[2]), "a NaN in a column of padding takes no part");
        float[] gradient = open.read(loss.backward(open.pass()));
        for (int i = 0; i < 24; i++) {
            assertEquals(i / 8 == 1 && i % 8 != 7, Float.isNaN(gradient[i]), "element " + i);
        }
    }

    @Test
    void ignoredTokensMayHoldAnything() {
        RealMatrix logits = open.normal(DType.FLOAT32, 3, 8, 1);
        logits.setEntry(1, 2, Double.NaN);
        CrossEntropy loss = new CrossEntropy(8);
        Tensor value = loss.forward(open.tensor(DType.FLOAT32, logits), labels(0, IGNORED, 2), open.pass());
        assertEquals(true, Float.isFinite(open.read(value)[0]));
        float[] gradient = open.read(loss.backward(open.pass()));
        for (int i = 8; i < 16; i++) {
            assertEquals(0, gradient[i], "element " + i);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void aLossForEachToken(DType dtype) {
        RealMatrix logits = open.normal(dtype, 40, 48, 2);
        int[] labels = open.random().ints(40, -8, 33).toArray();
        CrossEntropyWitness witness = new CrossEntropyWitness(logits, labels, 33, 0.25);
        CrossEntropy crossEntropy = new CrossEntropy(33).withLabelSmoothing(0.25f);
        assertEquals("cross-entropy of 33 classes, label smoothing 0.25", crossEntropy.toString());
        Tensor scores = open.tensor(dtype, logits);
        Tensor losses = crossEntropy.tokenLosses(scores, labels(labels), open.pass());
        open.assertClose("losses", witness.losses(), losses, Tolerances.rounded(DType.FLOAT32));
        double[] gradients = open.normal(DType.FLOAT32, 40, 1);
        Tensor actual = crossEntropy.backward(open.tensor(DType.FLOAT32, gradients, 40), open.pass());
        assertSame(scores, actual);
        open.assertClose("dlogits", witness.gradient(gradients), actual, Tolerances.rounded(dtype));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void smoothedMeanWithALossScale(DType dtype) {
        RealMatrix logits = open.normal(dtype, 40, 48, 2);
        int[] labels = open.random().ints(40, -8, 33).toArray();
        CrossEntropyWitness witness = new CrossEntropyWitness(logits, labels, 33, 0.1);
        CrossEntropy crossEntropy = new CrossEntropy(33).withLabelSmoothing(0.1f);
        Tensor scores = open.tensor(dtype, logits);
        Tensor loss = crossEntropy.forward(scores, labels(labels), open.pass());
        assertEquals(witness.loss(), open.read(loss)[0], 1e-5);
        Tensor scale = open.tensor(DType.FLOAT32, new double[] {4096}, 1);
        Tensor actual = crossEntropy.backward(0.5f, scale, open.pass());
        open.assertClose("dlogits", witness.gradient(2048), actual, Tolerances.rounded(dtype));
    }

    /** A wrong backward loses nothing: the right one can still be called. */
    @Test
    void theBackwardThatBelongsToTheForward() {
        CrossEntropy loss = new CrossEntropy(8);
        Tensor logits = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 3, 8, 1));
        Tensor gradients = open.tensor(DType.FLOAT32, new double[] {1, 2, 3}, 3);
        loss.tokenLosses(logits, labels(0, 1, 2), open.pass());
        assertThrown(
                IllegalStateException.class,
                "the last forward was tokenLosses: call backward(tokenGradients, pass)",
                () -> loss.backward(open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "tokenGradients: expected FLOAT32[3], got FLOAT32[3, 8]",
                () -> loss.backward(logits, open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "logits: expected memory of its own, got some of tokenGradients's; it is written to while that is read"
                        + " or written",
                () -> loss.backward(open.scope().view(logits, 0, 3), open.pass()));
        assertSame(logits, loss.backward(gradients, open.pass()));
        loss.forward(logits, labels(0, 1, 2), open.pass());
        assertThrown(
                IllegalStateException.class,
                "the last forward gave one loss: call backward(factor, pass)",
                () -> loss.backward(gradients, open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "lossScale: expected FLOAT32[1], got FLOAT32[3]",
                () -> loss.backward(1, gradients, open.pass()));
        assertSame(logits, loss.backward(open.pass()));
        for (float smoothing : new float[] {-0.1f, 1.1f, Float.NaN}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "labelSmoothing: expected 0 to 1, got " + smoothing,
                    () -> loss.withLabelSmoothing(smoothing));
        }
    }

    @Test
    void noTokensHaveNoLoss() {
        CrossEntropy loss = new CrossEntropy(8);
        Tensor logits = open.scope().tensor(DType.FLOAT32, 0, 8);
        assertEquals(0, open.read(loss.forward(logits, labels(), open.pass()))[0]);
        assertEquals(0, loss.backward(open.pass()).count());
    }

    @Test
    void theSameCallGivesTheSameBits() {
        RealMatrix logits = open.normal(DType.FLOAT32, 1000, 33, 1);
        int[] labels = open.random().ints(1000, 0, 33).toArray();
        Tensor scores = open.tensor(DType.FLOAT32, logits);
        Tensor targets = labels(labels);
        CrossEntropy loss = new CrossEntropy(33);
        float first = open.read(loss.forward(scores, targets, open.pass()))[0];
        for (int i = 0; i < 5; i++) {
            assertEquals(first, open.read(loss.forward(scores, targets, open.pass()))[0]);
        }
    }

    @Test
    void refusesWhatDoesNotFit() {
        assertThrown(IllegalArgumentException.class, "classes: expected at least 1, got 0", () -> new CrossEntropy(0));
        CrossEntropy loss = new CrossEntropy(9);
        Tensor logits = open.scope().tensor(DType.BFLOAT16, 4, 8);
        Tensor four = labels(1, 2, 3, 4);
        assertThrown(
                IllegalArgumentException.class,
                "logits: expected [T, at least 9 columns] of floats, got BFLOAT16[4, 8]",
                () -> loss.forward(logits, four, open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "logits: expected [T, at least 9 columns] of floats, got INT32[4]",
                () -> loss.forward(four, four, open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "labels: expected INT32[4], got INT32[3]",
                () -> new CrossEntropy(8).forward(logits, labels(1, 2, 3), open.pass()));
        assertThrown(
                IllegalArgumentException.class,
                "labels: expected INT32[4], got BFLOAT16[4, 8]",
                () -> new CrossEntropy(8).forward(logits, logits, open.pass()));
    }
}
