package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.CrossEntropy.Factors;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** {@code VocabularyCrossEntropy}: its steps on known numbers, and what is refused. Ranks together: {@code VocabularyParallelTest}. */
@Tag("L0")
@Tag("L1")
class VocabularyCrossEntropyConformance {
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, new Shape(sizes));
    }

    private static Tensor floats(long rows, float... values) {
        Tensor tensor = of(DType.FLOAT32, rows, values.length / rows);
        tensor.set(open.stream(), values);
        return tensor;
    }

    /** Classes 4 and 5 of 6; the third column is padding. Infinite and absent logits, too. */
    @Test
    void stepsOfOneRank() {
        float inf = Float.POSITIVE_INFINITY;
        Tensor z = floats(4, 1, 3, inf, -inf, -inf, 0, inf, 2, 0, Float.NaN, 5, 0);
        Tensor labels = open.ints(5, 4, -100, 0);
        VocabularyCrossEntropy rank = new VocabularyCrossEntropy(4, 2, 6, 0.5f);
        Tensor maximum = of(DType.FLOAT32, 4);
        rank.maximum(z, maximum, open.stream());
        assertArrayEquals(new float[] {3, -inf, inf, 5}, open.read(maximum));
        Tensor sums = of(DType.FLOAT32, 3, 4);
        rank.sums(z, labels, maximum, sums, open.stream());
        float[] actual = open.read(sums);
        assertEquals(1 + Math.exp(-2), actual[0], 1e-6);
        assertEquals(0, actual[1]);
        assertEquals(inf, actual[2]);
        assertEquals(Float.NaN, actual[3]);
        assertArrayEquals(new float[] {3, -inf, 0, 0}, Arrays.copyOfRange(actual, 4, 8));
        assertArrayEquals(new float[] {4 * 0x1p-32f, -inf, inf, Float.NaN}, Arrays.copyOfRange(actual, 8, 12));
    }

    @Test
    void aRankWithoutClassesGivesNothing() {
        VocabularyCrossEntropy rank = new VocabularyCrossEntropy(6, 0, 6, 0);
        for (long columns : new long[] {0, 3}) {
            Tensor z = of(DType.FLOAT32, 2, columns);
            Tensor labels = open.ints(0, 6);
            Tensor maximum = open.unwritten(DType.FLOAT32, 1, 2);
            maximum = open.scope().view(maximum, 0, 2);
            rank.maximum(z, maximum, open.stream());
            assertArrayEquals(
                    new float[] {Float.NEGATIVE_INFINITY, Float.NEGATIVE_INFINITY}, maximum.toFloats(open.stream()));
            Tensor sums = open.unwritten(DType.FLOAT32, 2, 2);
            rank.sums(z, labels, maximum, sums, open.stream());
            assertArrayEquals(new float[4], open.read(sums));
            Tensor counted = open.ints(1);
            rank.backward(z, labels, maximum, counted, Factors.one(), z, open.stream());
            assertArrayEquals(new float[Math.toIntExact(2 * columns)], z.toFloats(open.stream()));
        }
    }

    @Test
    void refusals() {
        Tensor z = of(DType.FLOAT32, 4, 8);
        Tensor labels = of(DType.INT32, 4);
        Tensor maximum = of(DType.FLOAT32, 4);
        Tensor sums = of(DType.FLOAT32, 2, 4);
        Tensor one = of(DType.FLOAT32, 1);
        refused("classes: expected at least 0, got -1", () -> maximum(z, -1, maximum));
        refused("logits: expected [T, at least 9 columns] of floats, got FLOAT32[4, 8]", () -> maximum(z, 9, maximum));
        refused("maximum: expected FLOAT32[4], got FLOAT32[1]", () -> maximum(z, 8, one));
        refused(
                "maximum: expected memory of its own, got some of logits" + SHARED,
                () -> maximum(z, 8, open.scope().view(z, 0, 4)));
        refused("first: expected at least 0, got -1", () -> sums(z, labels, -1, 0, maximum, sums));
        refused(
                "first: expected classes that labels of INT32 can name, at most 2147483648, got 8 from 2147483641 on",
                () -> sums(z, labels, Integer.MAX_VALUE - 6, 0, maximum, sums));
        sums(z, labels, Integer.MAX_VALUE - 7, 0, maximum, sums);
        refused("labelSmoothing: expected 0 to 1, got 2.0", () -> sums(z, labels, 0, 2, maximum, sums));
        refused("labelSmoothing: expected 0 to 1, got NaN", () -> new VocabularyCrossEntropy(0, 8, 8, Float.NaN));
        refused("labels: expected INT32[4], got FLOAT32[4]", () -> sums(z, maximum, 0, 0, maximum, sums));
        refused("sums: expected FLOAT32[3, 4], got FLOAT32[2, 4]", () -> sums(z, labels, 0, 0.1f, maximum, sums));
        refused(
                "sums: expected memory of its own, got some of maximum" + SHARED,
                () -> sums(z, labels, 0, 0, open.scope().view(sums, 0, 4), sums));
        refused("allClasses: expected at least 1, got 0", () -> new VocabularyCrossEntropy(0, 0, 0, 0));
        refused("divisor: expected INT32[1], got INT32[4]", () -> loss(8, labels, null, one));
        refused("tokenLosses: expected FLOAT32[4], got FLOAT32[1]", () -> loss(8, null, one, of(DType.FLOAT32, 1)));
        refused("loss: expected FLOAT32[1], got FLOAT32[4]", () -> loss(8, null, null, maximum));
        refused(
                "allClasses: expected at least first + classes, 3 + 8, got 10",
                () -> backward(z, labels, 3, 10, 1, null));
        refused("factor: expected a finite number, got NaN", () -> backward(z, labels, 0, 8, Float.NaN, null));
        refused("tokenGradients: expected FLOAT32[4], got FLOAT32[1]", () -> backward(z, labels, 0, 8, 1, one));
    }

    private static void refused(String text, Runnable call) {
        assertThrown(IllegalArgumentException.class, text, call::run);
    }

    private static void maximum(Tensor logits, long classes, Tensor maximum) {
        new VocabularyCrossEntropy(0, classes, 9, 0).maximum(logits, maximum, open.stream());
    }

    private static void sums(Tensor logits, Tensor labels, long first, float smoothing, Tensor maximum, Tensor sums) {
        new VocabularyCrossEntropy(first, 8, Math.max(1, first + 8), smoothing)
                .sums(logits, labels, maximum, sums, open.stream());
    }

    private static void loss(long classes, @Nullable Tensor divisor, @Nullable Tensor tokenLosses, Tensor loss) {
        new VocabularyCrossEntropy(0, classes, classes, 0)
                .loss(
                        of(DType.FLOAT32, 4),
                        of(DType.FLOAT32, 2, 4),
                        of(DType.INT32, 4),
                        divisor,
                        tokenLosses,
                        loss,
                        of(DType.INT32, 1),
                        open.stream());
    }

    private static void backward(
            Tensor z, Tensor labels, long first, long all, float factor, @Nullable Tensor tokenGradients) {
        new VocabularyCrossEntropy(first, 8, all, 0)
                .backward(
                        z,
                        labels,
                        of(DType.FLOAT32, 4),
                        null,
                        new Factors(factor, null, tokenGradients),
                        z,
                        open.stream());
    }

    @Test
    void makesNoGarbage() {
        Tensor z = of(DType.BFLOAT16, 4, 8);
        z.zero(open.stream());
        Tensor labels = open.ints(1, 2, 3, -1);
        Tensor sums = of(DType.FLOAT32, 2, 4);
        Tensor logSumExp = of(DType.FLOAT32, 4);
        Tensor loss = of(DType.FLOAT32, 1);
        Tensor counted = of(DType.INT32, 1);
        VocabularyCrossEntropy rank = new VocabularyCrossEntropy(0, 8, 8, 0);
        Factors factors = Factors.one();
        Allocation.assertNone("vocabulary-parallel cross-entropy", () -> {
            rank.maximum(z, logSumExp, open.stream());
            rank.sums(z, labels, logSumExp, sums, open.stream());
            rank.loss(logSumExp, sums, labels, null, null, loss, counted, open.stream());
            rank.backward(z, labels, logSumExp, counted, factors, z, open.stream());
        });
    }
}
