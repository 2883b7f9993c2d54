package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

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

    private static CrossEntropy.Saved check(Case c, RealMatrix logits, int[] labels) {
        CrossEntropyWitness witness = new CrossEntropyWitness(logits, labels, c.classes);
        CrossEntropy loss = new CrossEntropy(c.classes);
        Tensor scores = open.tensor(c.dtype, logits);
        CrossEntropy.Saved saved = loss.forward(scores, labels(labels), open.scope());
        open.assertClose("log-sum-exp", witness.logSumExp(), saved.logSumExp(), Tolerances.rounded(DType.FLOAT32));
        assertArrayEquals(new int[] {witness.counted()}, saved.counted().toInts(open.stream()));
        double spread = 1 + c.spread;
        assertEquals(witness.loss(), open.read(saved.loss())[0], 2e-6 * spread * (1 + Math.log(c.classes)));
        RealMatrix gradient = witness.gradient(0.5);
        Tensor actual = loss.backward(saved, 0.5f, open.scope());
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
        return saved;
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
        CrossEntropy.Saved none = check(c, logits, new int[] {-1, -1, -1, -1, -1, 5});
        assertEquals(0, open.read(none.loss())[0], "no token is labelled");
        assertArrayEquals(new float[48], open.read(new CrossEntropy(5).backward(none, 1, open.scope())));
    }

    @Test
    void nanStaysWithItsTokenButSpoilsTheMean() {
        RealMatrix logits = open.normal(DType.FLOAT32, 3, 8, 1);
        logits.setEntry(1, 2, Double.NaN);
        logits.setEntry(2, 7, Double.NaN);
        CrossEntropy loss = new CrossEntropy(7);
        CrossEntropy.Saved saved = loss.forward(open.tensor(DType.FLOAT32, logits), labels(0, 1, 2), open.scope());
        assertEquals(Float.NaN, open.read(saved.loss())[0]);
        float[] sums = open.read(saved.logSumExp());
        assertEquals(false, Float.isNaN(sums[0]));
        assertEquals(true, Float.isNaN(sums[1]));
        assertEquals(false, Float.isNaN(sums[2]), "a NaN in a column of padding takes no part");
        float[] gradient = open.read(loss.backward(saved, 1, open.scope()));
        for (int i = 0; i < 24; i++) {
            assertEquals(i / 8 == 1 && i % 8 != 7, Float.isNaN(gradient[i]), "element " + i);
        }
    }

    @Test
    void ignoredTokensMayHoldAnything() {
        RealMatrix logits = open.normal(DType.FLOAT32, 3, 8, 1);
        logits.setEntry(1, 2, Double.NaN);
        CrossEntropy loss = new CrossEntropy(8);
        CrossEntropy.Saved saved =
                loss.forward(open.tensor(DType.FLOAT32, logits), labels(0, IGNORED, 2), open.scope());
        assertEquals(true, Float.isFinite(open.read(saved.loss())[0]));
        float[] gradient = open.read(loss.backward(saved, 1, open.scope()));
        for (int i = 8; i < 16; i++) {
            assertEquals(0, gradient[i], "element " + i);
        }
    }

    @Test
    void noTokensHaveNoLoss() {
        CrossEntropy loss = new CrossEntropy(8);
        Tensor logits = open.scope().tensor(DType.FLOAT32, 0, 8);
        CrossEntropy.Saved saved = loss.forward(logits, labels(), open.scope());
        assertEquals(0, open.read(saved.loss())[0]);
        assertEquals(0, loss.backward(saved, 1, open.scope()).count());
    }

    @Test
    void theSameCallGivesTheSameBits() {
        RealMatrix logits = open.normal(DType.FLOAT32, 1000, 33, 1);
        int[] labels = open.random().ints(1000, 0, 33).toArray();
        Tensor scores = open.tensor(DType.FLOAT32, logits);
        Tensor targets = labels(labels);
        CrossEntropy loss = new CrossEntropy(33);
        float first = open.read(loss.forward(scores, targets, open.scope()).loss())[0];
        for (int i = 0; i < 5; i++) {
            assertEquals(
                    first, open.read(loss.forward(scores, targets, open.scope()).loss())[0]);
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
                () -> loss.forward(logits, four, open.scope()));
        assertThrown(
                IllegalArgumentException.class,
                "logits: expected [T, at least 9 columns] of floats, got INT32[4]",
                () -> loss.forward(four, four, open.scope()));
        assertThrown(
                IllegalArgumentException.class,
                "labels: expected INT32[4], got INT32[3]",
                () -> new CrossEntropy(8).forward(logits, labels(1, 2, 3), open.scope()));
        assertThrown(
                IllegalArgumentException.class,
                "labels: expected INT32[4], got BFLOAT16[4, 8]",
                () -> new CrossEntropy(8).forward(logits, logits, open.scope()));
    }
}
