package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.FusedRope.Pairing;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code FusedQkvRope} against double precision: both formats, both pairings, grouped queries, part of a head, start positions. */
@Tag("L0")
@Tag("L1")
class FusedQkvRopeConformance {
    private static final int POSITIONS = 60;
    private static final int SEQUENCES = 3;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Heads are those of a group, of q, k and v; each sequence i starts at position {@code start * i}. */
    record Case(
            DType dtype,
            QkvFormat format,
            Pairing pairing,
            int length,
            int groups,
            List<Integer> heads,
            int headDim,
            int rotated,
            int start) {
        int width() {
            return heads.stream().mapToInt(Integer::intValue).sum() * headDim;
        }

        int tokens() {
            return SEQUENCES * length;
        }

        int position(int token) {
            return format == QkvFormat.BSHD ? token % length : token / SEQUENCES;
        }

        int sequence(int token) {
            return format == QkvFormat.BSHD ? token / length : token % SEQUENCES;
        }

        long[] sizes(long heads, long width) {
            return format == QkvFormat.BSHD
                    ? new long[] {SEQUENCES, length, heads, width}
                    : new long[] {length, SEQUENCES, heads, width};
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Pairing pairing : Pairing.values()) {
                for (QkvFormat format : List.of(QkvFormat.BSHD, QkvFormat.SBHD)) {
                    cases.add(new Case(dtype, format, pairing, 33, 2, List.of(1, 1, 1), 16, 16, 0));
                    cases.add(new Case(dtype, format, pairing, 5, 3, List.of(4, 1, 1), 64, 32, 20));
                    cases.add(new Case(dtype, format, pairing, 1, 9, List.of(2, 2, 3), 7, 2, 7));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        double[][] angles = {angles(c), angles(c)};
        Tensor qFreqs = open.tensor(DType.FLOAT32, angles[0], POSITIONS, 1, 1, c.rotated);
        Tensor kFreqs = open.tensor(DType.FLOAT32, angles[1], POSITIONS, 1, 1, c.rotated);
        double[] x = open.normal(c.dtype, c.tokens() * c.groups * c.width(), 1);
        Tensor qkv = open.tensor(c.dtype, x, c.sizes(c.groups, c.width()));
        Tensor[] parts = new Tensor[3];
        for (int part = 0; part < 3; part++) {
            parts[part] = open.unwritten(c.dtype, c.sizes((long) c.groups * c.heads.get(part), c.headDim));
        }
        int[] starts = new int[SEQUENCES];
        Arrays.setAll(starts, i -> c.start * i);
        Tensor startPositions = c.start == 0 ? null : open.ints(starts);
        new FusedQkvRope(qFreqs, kFreqs, c.pairing)
                .forward(qkv, startPositions, parts[0], parts[1], parts[2], c.format, open.stream());
        for (int part = 0; part < 3; part++) {
            double[] expected = new double[(int) parts[part].count()];
            copy(c, part, x, expected, angles, starts);
            open.assertClose("part " + part, expected, parts[part], Tolerances.rounded(c.dtype));
        }
        backward(c, angles, qFreqs, kFreqs);
    }

    private static void backward(Case c, double[][] angles, Tensor qFreqs, Tensor kFreqs) {
        double[] expected = new double[c.tokens() * c.groups * c.width()];
        Tensor[] gradients = new Tensor[3];
        for (int part = 0; part < 3; part++) {
            double[] dy = open.normal(c.dtype, c.tokens() * c.groups * c.heads.get(part) * c.headDim, 1);
            gradients[part] = open.tensor(c.dtype, dy, c.sizes((long) c.groups * c.heads.get(part), c.headDim));
            add(c, part, dy, expected, angles);
        }
        Tensor gradient = open.unwritten(c.dtype, c.sizes(c.groups, c.width()));
        new FusedQkvRope(qFreqs, kFreqs, c.pairing)
                .backward(gradients[0], gradients[1], gradients[2], gradient, c.format, open.stream());
        open.assertClose("qkvGradInput", expected, gradient, Tolerances.rounded(c.dtype));
    }

    /** Copies a part of all groups out of {@code joint}, rotated. */
    private static void copy(Case c, int part, double[] joint, double[] own, double[][] angles, int[] starts) {
        for (int token = 0; token < c.tokens(); token++) {
            int position = c.position(token) + starts[c.sequence(token)];
            for (int head = 0; head < c.groups * c.heads.get(part); head++) {
                int to = (token * c.groups * c.heads.get(part) + head) * c.headDim;
                rotate(c, part, joint, place(c, part, token, head), own, to, angles, position, 1);
            }
        }
    }

    /** Copies a part of all groups into {@code joint}, rotated back. */
    private static void add(Case c, int part, double[] own, double[] joint, double[][] angles) {
        for (int token = 0; token < c.tokens(); token++) {
            for (int head = 0; head < c.groups * c.heads.get(part); head++) {
                int from = (token * c.groups * c.heads.get(part) + head) * c.headDim;
                int to = place(c, part, token, head);
                rotate(c, part, own, from, joint, to, angles, c.position(token), -1);
            }
        }
    }

    /** Returns where a head begins in the interleaved projection. */
    private static int place(Case c, int part, int token, int head) {
        int each = c.heads.get(part);
        int before =
                c.heads.subList(0, part).stream().mapToInt(Integer::intValue).sum();
        return (token * c.groups + head / each) * c.width() + (before + head % each) * c.headDim;
    }

    private static void rotate(
            Case c,
            int part,
            double[] x,
            int from,
            double[] y,
            int to,
            double[][] angles,
            int position,
            int direction) {
        System.arraycopy(x, from, y, to, c.headDim);
        for (int i = 0; part < 2 && i < c.rotated / 2; i++) {
            int first = c.pairing == Pairing.HALVES ? i : 2 * i;
            int second = c.pairing == Pairing.HALVES ? i + c.rotated / 2 : 2 * i + 1;
            double angle = direction * angles[part][position * c.rotated + first];
            double a = x[from + first];
            double b = x[from + second];
            y[to + first] = a * Math.cos(angle) - b * Math.sin(angle);
            y[to + second] = b * Math.cos(angle) + a * Math.sin(angle);
        }
    }

    /** Returns drawn angles, those of a pair alike. */
    private static double[] angles(Case c) {
        double[] angles = new double[POSITIONS * c.rotated];
        int half = c.rotated / 2;
        double[] drawn = open.normal(DType.FLOAT32, POSITIONS * half, 3);
        for (int i = 0; i < drawn.length; i++) {
            int start = i / half * c.rotated;
            int pair = i % half;
            angles[start + (c.pairing == Pairing.HALVES ? pair : 2 * pair)] = drawn[i];
            angles[start + (c.pairing == Pairing.HALVES ? pair + half : 2 * pair + 1)] = drawn[i];
        }
        return angles;
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void withoutTokens() {
        Tensor freqs = of(DType.FLOAT32, 10, 1, 1, 16);
        Tensor[] parts = {of(DType.FLOAT32, 2, 0, 2, 16), of(DType.FLOAT32, 2, 0, 2, 16), of(DType.FLOAT32, 2, 0, 2, 16)
        };
        Tensor qkv = of(DType.FLOAT32, 2, 0, 2, 48);
        QkvFormat format = QkvFormat.BSHD;
        new FusedQkvRope(freqs, freqs, Pairing.HALVES)
                .forward(qkv, null, parts[0], parts[1], parts[2], format, open.stream());
        new FusedQkvRope(freqs, freqs, Pairing.HALVES)
                .backward(parts[0], parts[1], parts[2], qkv, format, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor qkv = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 384, 1), 2, 4, 1, 48);
        Tensor q = of(DType.BFLOAT16, 2, 4, 1, 16);
        Tensor k = of(DType.BFLOAT16, 2, 4, 1, 16);
        Tensor v = of(DType.BFLOAT16, 2, 4, 1, 16);
        Tensor freqs = open.tensor(DType.FLOAT32, new double[160], 10, 1, 1, 16);
        FusedQkvRope rotation = new FusedQkvRope(freqs, freqs, Pairing.HALVES);
        Allocation.assertNone("rotations", () -> {
            rotation.forward(qkv, null, q, k, v, QkvFormat.BSHD, open.stream());
            rotation.backward(q, k, v, qkv, QkvFormat.BSHD, open.stream());
        });
    }
}
