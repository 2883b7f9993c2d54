package dev.chagres.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.ops.AttentionScores.Alignment;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import dev.chagres.witness.ScoredAttention;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Attention over changed scores against double precision, its gradients against finite differences of that. */
@Tag("L0")
@Tag("L1")
class AttentionScoresConformance {
    private static final int HEADS = 4;
    private static final int DIM = 16;
    private static final double STEP = 1e-4;
    private static final int SAMPLES = 12;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Sizes of bias and mask are 1, where sequences or heads share them, B and h, or 0: none. */
    record Case(
            DType dtype,
            QkvFormat format,
            MaskType mask,
            float cap,
            int slopes,
            Alignment alignment,
            int biasSequences,
            int biasHeads,
            int maskSequences,
            SoftmaxType softmax,
            boolean preScale) {
        Case(
                DType dtype,
                QkvFormat format,
                MaskType mask,
                float cap,
                int slopes,
                Alignment alignment,
                int biasSequences,
                int biasHeads,
                int maskSequences,
                SoftmaxType softmax) {
            this(dtype, format, mask, cap, slopes, alignment, biasSequences, biasHeads, maskSequences, softmax, false);
        }

        Case beforeTheScale() {
            return new Case(
                    dtype,
                    format,
                    mask,
                    cap,
                    slopes,
                    alignment,
                    biasSequences,
                    biasHeads,
                    maskSequences,
                    softmax,
                    true);
        }

        TokenRows rows(int padded, Integer... lengths) {
            return format == QkvFormat.THD ? TokenRows.packed(lengths) : TokenRows.padded(format, padded, lengths);
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            for (QkvFormat format : QkvFormat.values()) {
                MaskType full = MaskType.PADDING;
                MaskType causal = MaskType.PADDING_CAUSAL;
                Alignment left = Alignment.TOP_LEFT;
                Alignment right = Alignment.BOTTOM_RIGHT;
                SoftmaxType vanilla = SoftmaxType.VANILLA;
                cases.add(new Case(dtype, format, full, 2, 0, left, 0, 0, 0, vanilla));
                cases.add(new Case(dtype, format, causal, 0, 1, left, 0, 0, 0, vanilla));
                cases.add(new Case(dtype, format, full, 0, 3, right, 0, 0, 0, vanilla));
                cases.add(new Case(dtype, format, full, 0, 0, left, 1, 1, 0, vanilla));
                cases.add(new Case(dtype, format, causal, 0, 0, left, 3, HEADS, 0, vanilla));
                cases.add(new Case(dtype, format, full, 0, 0, left, 0, 0, 1, vanilla));
                cases.add(new Case(dtype, format, full, 0, 0, left, 0, 0, 0, SoftmaxType.OFF_BY_ONE));
                cases.add(new Case(dtype, format, causal, 0, 0, left, 0, 0, 0, SoftmaxType.LEARNABLE));
                cases.add(new Case(
                        dtype,
                        format,
                        MaskType.PADDING_CAUSAL_BOTTOM_RIGHT,
                        3,
                        1,
                        right,
                        1,
                        HEADS,
                        3,
                        SoftmaxType.LEARNABLE));
            }
        }
        List<Case> biased = cases.stream().filter(c -> c.biasSequences > 0).toList();
        biased.forEach(c -> cases.add(c.beforeTheScale()));
        return cases;
    }

    /** One call: its tensors, and the same numbers in double precision. */
    private static final class Run {
        final Case c;
        final AttentionProblem problem;
        final AttentionTensors tensors = new AttentionTensors();
        final AttentionScores scores = new AttentionScores();
        final ScoredAttention witness;
        final double[] dO;
        final Tensor delta;

        Run(Case c) {
            this.c = c;
            TokenRows queries = c.rows(9, 7, 1, 9);
            TokenRows keys = c.rows(13, 9, 4, 13);
            double scale = 1 / Math.sqrt(DIM);
            problem = AttentionProblem.of(QkvLayout.separate(c.format), (float) scale)
                    .withMask(c.mask);
            witness = new ScoredAttention(
                    queries,
                    keys,
                    HEADS,
                    2,
                    c.mask,
                    scale,
                    draw(queries.tokens() * HEADS * DIM),
                    draw(keys.tokens() * 2 * DIM),
                    draw(keys.tokens() * 2 * DIM));
            dO = draw(witness.q.length);
            tensors.query(heads(queries, HEADS, witness.q))
                    .key(heads(keys, 2, witness.k))
                    .value(heads(keys, 2, witness.v))
                    .output(heads(queries, HEADS, new double[dO.length]))
                    .outputGradient(heads(queries, HEADS, dO))
                    .queryGradient(heads(queries, HEADS, new double[dO.length]))
                    .keyGradient(heads(keys, 2, new double[witness.k.length]))
                    .valueGradient(heads(keys, 2, new double[witness.k.length]))
                    .queryLengths(cumulative(queries), c.format == QkvFormat.THD ? 9 : queries.padded())
                    .keyLengths(cumulative(keys), c.format == QkvFormat.THD ? 13 : keys.padded());
            tensors.statistics(FusedAttention.statistics(problem, tensors, open.scope()));
            delta = open.scope().like(tensors.statistics());
            change();
        }

        private void change() {
            witness.cap = c.cap;
            scores.softcap(c.cap);
            if (c.slopes > 0) {
                witness.slopes = open.normal(DType.FLOAT32, c.slopes * HEADS, 0.2);
                witness.bottomRight = c.alignment == Alignment.BOTTOM_RIGHT;
                Shape shape = c.slopes == 1 ? Shape.of(HEADS) : Shape.of(c.slopes, HEADS);
                scores.alibi(tensor(DType.FLOAT32, shape, witness.slopes), c.alignment);
            }
            if (c.biasSequences > 0) {
                witness.biasShape = new int[] {c.biasSequences, c.biasHeads, 11, 13};
                witness.bias = draw(c.biasSequences * c.biasHeads * 11 * 13);
                Tensor bias = tensor(c.dtype, Shape.of(c.biasSequences, c.biasHeads, 11, 13), witness.bias);
                witness.preScale = c.preScale;
                (c.preScale ? scores.preScaleBias(bias) : scores.bias(bias))
                        .biasGradient(open.scope().like(bias));
            }
            if (c.maskSequences > 0) {
                witness.maskShape = new int[] {c.maskSequences, 1, 9, 14};
                witness.mask = new byte[c.maskSequences * 9 * 14];
                for (int i = 0; i < witness.mask.length; i++) {
                    // The third query sees nothing.
                    witness.mask[i] = (byte) (i / 14 % 9 == 2 || open.random().nextInt(3) == 0 ? 1 : 0);
                }
                Tensor mask = open.scope().tensor(DType.BYTE, c.maskSequences, 1, 9, 14);
                try (HostBuffer host = HostBuffer.pageable(open.device(), witness.mask.length)) {
                    host.segment().copyFrom(MemorySegment.ofArray(witness.mask));
                    mask.copyFrom(open.stream(), host.segment());
                    open.stream().synchronize();
                }
                scores.mask(mask);
            }
            witness.softmax = c.softmax;
            Tensor sinks = null;
            if (c.softmax == SoftmaxType.LEARNABLE) {
                witness.sinks = open.normal(DType.FLOAT32, HEADS, 1);
                sinks = tensor(DType.FLOAT32, Shape.of(HEADS), witness.sinks);
                scores.sinksGradient(open.scope().like(sinks));
            }
            scores.softmax(c.softmax, sinks);
        }

        double[] draw(int count) {
            return open.normal(c.dtype, count, 1);
        }

        Tensor heads(TokenRows rows, int count, double[] values) {
            long batch = rows.lengths().size();
            Shape shape = switch (rows.format()) {
                case THD -> Shape.of(rows.tokens(), count, DIM);
                case BSHD -> Shape.of(batch, rows.padded(), count, DIM);
                case SBHD -> Shape.of(rows.padded(), batch, count, DIM);
            };
            return tensor(c.dtype, shape, values);
        }

        void forward() {
            Attention.forward(problem, tensors, scores, open.stream());
        }

        void backward() {
            Attention.backward(problem, tensors, scores, delta, open.stream());
        }

        /** Compares some elements of a gradient with what the loss does when they move. */
        void check(String what, Tensor gradient, double[] numbers) {
            float[] actual = open.read(gradient);
            for (int sample = 0; sample < SAMPLES; sample++) {
                int i = open.random().nextInt(numbers.length);
                double before = numbers[i];
                numbers[i] = before + STEP;
                double more = witness.loss(dO);
                numbers[i] = before - STEP;
                double less = witness.loss(dO);
                numbers[i] = before;
                assertEquals((more - less) / (2 * STEP), actual[i], tolerance(c.dtype), what + "[" + i + "]");
            }
        }
    }

    /** Outputs and gradients are of size 1; 16 bits round output, statistics' scores and gradient, each to 2^-9. */
    private static double tolerance(DType dtype) {
        return dtype == DType.FLOAT32 ? 2e-5 : 4e-2;
    }

    private static Tensor tensor(DType dtype, Shape shape, double[] values) {
        Tensor tensor = open.scope().tensor(dtype, shape);
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        tensor.set(open.stream(), floats);
        return tensor;
    }

    private static Tensor cumulative(TokenRows rows) {
        int[] offsets = new int[rows.lengths().size() + 1];
        for (int i = 0; i + 1 < offsets.length; i++) {
            offsets[i + 1] = offsets[i] + rows.lengths().get(i);
        }
        return open.ints(offsets);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void outputAndGradients(Case c) {
        Run run = new Run(c);
        run.forward();
        double[] sums = new double[run.dO.length / DIM];
        double[] expected = run.witness.output(sums);
        float[] actual = open.read(run.tensors.output());
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i], actual[i], tolerance(c.dtype), "output[" + i + "]");
        }
        if (c.format == QkvFormat.THD) {
            float[] statistics = open.read(run.tensors.statistics());
            for (int i = 0; i < sums.length; i++) {
                assertEquals(sums[i], statistics[i], 1e-4, "statistics[" + i + "]");
            }
        }
        run.backward();
        run.check("dq", run.tensors.queryGradient(), run.witness.q);
        run.check("dk", run.tensors.keyGradient(), run.witness.k);
        run.check("dv", run.tensors.valueGradient(), run.witness.v);
        if (c.biasSequences > 0) {
            run.check("biasGradient", run.scores.biasGradient(), run.witness.bias);
        }
        if (c.softmax == SoftmaxType.LEARNABLE) {
            run.check("sinksGradient", run.scores.sinksGradient(), run.witness.sinks);
        }
    }

    private static Case everything() {
        return cases().get(8);
    }

    @Test
    void equalCallsGiveEqualBits() {
        Run run = new Run(everything());
        run.forward();
        run.backward();
        float[] bias = open.read(run.scores.biasGradient());
        float[] sinks = open.read(run.scores.sinksGradient());
        run.backward();
        assertArrayEquals(bias, open.read(run.scores.biasGradient()));
        assertArrayEquals(sinks, open.read(run.scores.sinksGradient()));
    }

    /** What one call says must not stay for the next one. */
    @Test
    void plainCallsAfterwardsArePlain() {
        Run changed = new Run(everything());
        Run plain = new Run(new Case(
                DType.FLOAT32,
                QkvFormat.THD,
                MaskType.PADDING,
                0,
                0,
                Alignment.TOP_LEFT,
                0,
                0,
                0,
                SoftmaxType.VANILLA));
        plain.forward();
        float[] before = open.read(plain.tensors.output());
        changed.forward();
        Attention.forward(plain.problem, plain.tensors, open.stream());
        assertArrayEquals(before, open.read(plain.tensors.output()));
    }

    @Test
    void makesNoGarbage() {
        Run run = new Run(everything());
        Allocation.assertNone("attention over changed scores", () -> {
            run.forward();
            run.backward();
        });
    }
}
