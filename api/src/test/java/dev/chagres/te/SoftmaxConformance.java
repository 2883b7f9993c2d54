package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Softmax} against double precision, and what it refuses. */
@Tag("L0")
@Tag("L1")
class SoftmaxConformance {
    private static final float SCALE = 0.25f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(Softmax kind, DType dtype, int batches, int heads, int queries, int keys) {
        int rows() {
            return batches * heads * queries;
        }

        long[] sizes() {
            return kind == Softmax.UPPER_TRIANG_MASKED
                    ? new long[] {batches * heads, queries, keys}
                    : new long[] {batches, heads, queries, keys};
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
            for (Softmax kind : List.of(Softmax.SCALED, Softmax.MASKED)) {
                cases.add(new Case(kind, dtype, 2, 3, 8, 48));
                cases.add(new Case(kind, dtype, 1, 1, 256, 1));
                cases.add(new Case(kind, dtype, 3, 1, 4, 516));
            }
            cases.add(new Case(Softmax.UPPER_TRIANG_MASKED, dtype, 4, 4, 31, 31));
            cases.add(new Case(Softmax.UPPER_TRIANG_MASKED, dtype, 2, 4, 132, 132));
            cases.add(new Case(Softmax.ALIGNED_CAUSAL_MASKED, dtype, 2, 3, 5, 37));
            cases.add(new Case(Softmax.ALIGNED_CAUSAL_MASKED, dtype, 1, 2, 7, 7));
        }
        return cases;
    }

    private static boolean sees(Case c, boolean[] masked, int row, int key) {
        int query = row % c.queries;
        return switch (c.kind) {
            case SCALED -> true;
            case MASKED -> !masked[query * c.keys + key];
            case UPPER_TRIANG_MASKED -> key <= query;
            case ALIGNED_CAUSAL_MASKED -> key <= query + c.keys - c.queries;
        };
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        int count = c.rows() * c.keys;
        double[] x = open.normal(c.dtype, count, 2);
        boolean[] masked = new boolean[c.queries * c.keys];
        byte[] mask = new byte[masked.length];
        for (int i = 0; i < masked.length; i++) {
            // The second query sees nothing at all.
            masked[i] = i / c.keys == 1 || (c.keys > 1 && open.random().nextInt(3) == 0);
            mask[i] = (byte) (masked[i] ? 1 : 0);
        }
        double[] y = new double[count];
        for (int row = 0; row < c.rows(); row++) {
            double sum = 0;
            for (int key = 0; key < c.keys; key++) {
                int i = row * c.keys + key;
                y[i] = sees(c, masked, row, key) ? Math.exp(SCALE * x[i]) : 0;
                sum += y[i];
            }
            for (int key = 0; key < c.keys; key++) {
                y[row * c.keys + key] /= sum == 0 ? 1 : sum;
            }
        }
        Tensor input = open.tensor(c.dtype, x, c.sizes());
        Tensor results = open.unwritten(c.dtype, c.sizes());
        Tensor maskTensor = of(DType.BYTE, 1, 1, c.queries, c.keys);
        maskTensor.set(open.stream(), mask);
        forward(c.kind, input, maskTensor, results);
        open.assertClose("p", y, open.read(results), 0.1, Tolerances.rounded(c.dtype));
        double[] dy = open.normal(c.dtype, count, 1);
        float[] stored = open.read(results);
        double[] dx = new double[count];
        for (int row = 0; row < c.rows(); row++) {
            double sum = 0;
            for (int i = row * c.keys; i < (row + 1) * c.keys; i++) {
                sum += stored[i] * dy[i];
            }
            for (int i = row * c.keys; i < (row + 1) * c.keys; i++) {
                dx[i] = SCALE * stored[i] * (dy[i] - sum);
            }
        }
        Tensor gradient = open.tensor(c.dtype, dy, c.sizes());
        backward(c.kind, gradient, results, gradient);
        open.assertClose("dx", dx, open.read(gradient), 0.1, Tolerances.rounded(c.dtype));
    }

    private static void forward(Softmax kind, Tensor x, Tensor mask, Tensor y) {
        kind.forward(x, kind == Softmax.MASKED ? mask : null, y, SCALE, open.stream());
    }

    private static void backward(Softmax kind, Tensor dy, Tensor y, Tensor dx) {
        kind.backward(dy, y, dx, SCALE, open.stream());
    }

    @Test
    void queriesAtOnce() {
        assertEquals(256, Softmax.queriesAtOnce(1));
        assertEquals(128, Softmax.queriesAtOnce(2));
        assertEquals(64, Softmax.queriesAtOnce(3));
        assertEquals(8, Softmax.queriesAtOnce(32));
        assertEquals(8, Softmax.queriesAtOnce(128));
        assertEquals(4, Softmax.queriesAtOnce(129));
    }

    @Test
    void withoutElementsAndWithoutGarbage() {
        Tensor none = of(DType.BFLOAT16, 0, 2, 8, 64);
        Tensor mask = of(DType.BYTE, 1, 1, 8, 64);
        Softmax.SCALED.forward(none, null, none, SCALE, open.stream());
        Softmax.MASKED.forward(none, mask, none, SCALE, open.stream());
        Softmax.SCALED.backward(none, of(DType.BFLOAT16, 0, 2, 8, 64), none, SCALE, open.stream());
        open.stream().synchronize();
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 1024, 1), 1, 2, 8, 64);
        Tensor y = open.scope().like(x);
        Allocation.assertNone("softmax", () -> {
            Softmax.SCALED.forward(x, null, y, SCALE, open.stream());
            Softmax.ALIGNED_CAUSAL_MASKED.backward(x, y, x, SCALE, open.stream());
        });
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Softmax kind, Tensor x, Tensor mask, Tensor y) {
        assertThrown(IllegalArgumentException.class, text, () -> forward(kind, x, mask, y));
    }

    private static void refusedBackward(String text, Softmax kind, Tensor dy, Tensor y, Tensor dx) {
        assertThrown(IllegalArgumentException.class, text, () -> backward(kind, dy, y, dx));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.BFLOAT16, 2, 3, 8, 64);
        Tensor mask = of(DType.BYTE, 2, 1, 8, 64);
        String scores = "input: expected FLOAT16 or BFLOAT16 of [b, h, sq, sk] with at most 16384 keys, got ";
        Tensor floats = of(DType.FLOAT32, 2, 3, 8, 64);
        refused(scores + "FLOAT32[2, 3, 8, 64]", Softmax.SCALED, floats, mask, floats);
        Tensor matrix = of(DType.BFLOAT16, 8, 64);
        refused(scores + "BFLOAT16[8, 64]", Softmax.ALIGNED_CAUSAL_MASKED, matrix, mask, matrix);
        Tensor odd = of(DType.BFLOAT16, 2, 3, 7, 64);
        refused(
                "input: expected sq a multiple of 8, as many as TE's kernel takes at once with 64 keys, got"
                        + " BFLOAT16[2, 3, 7, 64]",
                Softmax.SCALED,
                odd,
                mask,
                odd);
        refused(
                "mask: expected BYTE[2 or 1, 1, 8, 64], got BYTE[1, 1, 8, 32]",
                Softmax.MASKED,
                x,
                of(DType.BYTE, 1, 1, 8, 32),
                x);
        assertThrown(
                IllegalArgumentException.class,
                "mask: expected none, for the softmax is SCALED, got BYTE[2, 1, 8, 64]",
                () -> Softmax.SCALED.forward(x, mask, x, SCALE, open.stream()));
        refused("mask: expected elements of BYTE, got BFLOAT16[2, 3, 8, 64]", Softmax.MASKED, x, x, x);
        refused(
                "softmaxResults: expected BFLOAT16[2, 3, 8, 64], got BFLOAT16[2, 3, 7, 64]",
                Softmax.SCALED,
                x,
                mask,
                odd);
        Tensor uneven = of(DType.BFLOAT16, 2, 3, 8, 70);
        refused(
                "input: expected a multiple of 4 keys, as many as a thread of TE's kernel reads at once beyond 64, got"
                        + " BFLOAT16[2, 3, 8, 70]; pad with masked keys",
                Softmax.SCALED,
                uneven,
                mask,
                uneven);
        Tensor wide = of(DType.BFLOAT16, 8, 4, 64);
        refused(
                "input: expected as many queries as keys, got BFLOAT16[8, 4, 64]; call" + " ALIGNED_CAUSAL_MASKED",
                Softmax.UPPER_TRIANG_MASKED,
                wide,
                mask,
                wide);
        Tensor few = of(DType.BFLOAT16, 3, 64, 64);
        refusedBackward(
                "incomingGrads: expected b h a multiple of 8, as many as TE's kernel takes at once with 64 keys, got"
                        + " BFLOAT16[3, 64, 64]",
                Softmax.UPPER_TRIANG_MASKED,
                few,
                few,
                few);
        refusedBackward(
                "outputGrads: expected memory of its own, got some of softmaxResults's; it is written to while that is"
                        + " read or written",
                Softmax.MASKED,
                of(DType.BFLOAT16, 2, 3, 8, 64),
                x,
                x);
    }
}
