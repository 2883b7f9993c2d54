package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Attention;
import dev.chagres.te.ScaledAttentionCase.Heads;
import dev.chagres.witness.Float8Witness;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * {@code FusedAttention} in eight bits against double precision that rounds softmax weights and gradients of scores as it does.
 * cuDNN's forward rounds weights before it divides by their sum, so that each is off by another rounding there, and a scale above 448
 * would cut the largest of each row off.
 */
@Tag("L0")
@Tag("L1")
class ScaledAttentionConformance {
    private static final DType E4M3 = DType.FLOAT8_E4M3;
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;
    private static final Tolerance FORWARD =
            new Tolerance("attention in eight bits, forward", REFERENCE ? 1e-2 : 6e-2, 1);
    private static final Tolerance BACKWARD =
            new Tolerance("attention in eight bits, backward", REFERENCE ? 3e-2 : 1.5e-1, 3);
    /** Of a largest magnitude, relative. */
    private static final double LARGEST = REFERENCE ? 1e-2 : 1e-1;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static List<ScaledAttentionCase> trained() {
        List<ScaledAttentionCase> cases = new ArrayList<>();
        for (QkvFormat format : List.of(QkvFormat.BSHD, QkvFormat.SBHD)) {
            for (QkvLayout layout : List.of(QkvLayout.packed(format), QkvLayout.separate(format))) {
                for (MaskType mask : List.of(MaskType.NO_MASK, MaskType.CAUSAL)) {
                    cases.add(new ScaledAttentionCase(layout, mask, 2, 2, 128, 64, 64, 64));
                    cases.add(new ScaledAttentionCase(layout, mask, 1, 1, 128, 129, 129));
                }
                for (MaskType mask : List.of(MaskType.PADDING, MaskType.PADDING_CAUSAL)) {
                    cases.add(new ScaledAttentionCase(layout, mask, 2, 2, 128, 80, 17, 80, 1));
                }
            }
            cases.add(new ScaledAttentionCase(QkvLayout.separate(format), MaskType.CAUSAL, 4, 2, 128, 48, 48));
        }
        return cases;
    }

    static List<ScaledAttentionCase> inferred() {
        List<ScaledAttentionCase> cases = new ArrayList<>();
        for (int headDim : new int[] {16, 48, 64, 128, 192, 256}) {
            cases.add(new ScaledAttentionCase(QkvLayout.BS3HD, MaskType.CAUSAL, 2, 2, headDim, 64, 64));
            cases.add(new ScaledAttentionCase(QkvLayout.SBHD_SBHD_SBHD, MaskType.PADDING, 2, 1, headDim, 96, 31, 96));
        }
        return cases;
    }

    private static final class Run {
        final ScaledAttentionCase c;
        final AttentionTensors tensors = new AttentionTensors();
        final Heads[] inputs;
        final Heads output;
        final TensorScale qkv = scale(0, 30);
        final TensorScale softmax = scale(0, 448);
        final TensorScale written = scale(0, 100);

        Run(ScaledAttentionCase c) {
            this.c = c;
            inputs = c.triple(open, E4M3, 30);
            output = c.single(open, E4M3, c.heads(), 0);
            int[] offsets = new int[c.lengths().length + 1];
            for (int b = 0; b < c.lengths().length; b++) {
                offsets[b + 1] = offsets[b] + c.lengths()[b];
            }
            Tensor lengths = open.ints(offsets);
            tensors.query(inputs[0].view)
                    .key(inputs[1].view)
                    .value(inputs[2].view)
                    .output(output.view)
                    .queryLengths(lengths, c.padded())
                    .keyLengths(lengths, c.padded());
            tensors.statistics(
                    open.scope().tensor(DType.FLOAT32, FusedAttention.statisticsShape(c.problem(), tensors)));
        }

        double unit() {
            return value(qkv.scaleInverse());
        }

        double[][] weights(int b, int head) {
            return c.weights(inputs[0], inputs[1], c.problem().scale() * unit() * unit(), b, head);
        }
    }

    /** {@code inverse} 0 stands for that of {@code scale}. */
    private static TensorScale scale(float inverse, float scale) {
        float present = inverse == 0 ? 1 / scale : inverse;
        Tensor amax = open.scope().tensor(DType.FLOAT32, 1);
        amax.zero(open.stream());
        return new TensorScale(
                open.tensor(DType.FLOAT32, new double[] {scale}, 1),
                open.tensor(DType.FLOAT32, new double[] {present}, 1),
                amax);
    }

    private static double value(Tensor cell) {
        return cell.toFloats(open.stream())[0];
    }

    /** What rounds a value as a tensor of this scale has it, with the scale read once. */
    private record Rounding(float scale, double inverse, DType dtype) {
        static Rounding of(TensorScale scale, DType dtype) {
            return new Rounding((float) value(scale.scale()), value(scale.scaleInverse()), dtype);
        }

        double of(double value) {
            return Float8Witness.quantized(value, scale, dtype) * inverse;
        }
    }

    /** Returns whether TE refuses a case, as cuDNN may: then it says so. The reference takes all. */
    private static boolean isRefused(ScaledAttentionCase c, AttentionProblem problem, DType gradientType) {
        AttentionSizes sizes = AttentionSizes.of(c.lengths().length, c.padded(), c.heads(), c.headDim())
                .withKeyHeads(c.keyHeads());
        String refusal = FusedAttention.refusal(problem, E4M3, gradientType, sizes, open.device());
        if (refusal != null) {
            System.out.println("  refused " + c + " with " + gradientType + ": " + refusal);
            assertFalse(REFERENCE, "the reference takes every case");
        }
        return refusal != null;
    }

    @ParameterizedTest
    @MethodSource("inferred")
    void inference(ScaledAttentionCase c) {
        if (isRefused(c, c.problem().forInference(), DType.FLOAT8_E5M2)) {
            return;
        }
        Run run = new Run(c);
        run.tensors.scales(AttentionScales.ofForward(run.qkv, run.softmax, run.written));
        FusedAttention.forward(c.problem().forInference(), run.tensors, open.stream());
        checkForward(run);
    }

    @ParameterizedTest
    @MethodSource("trained")
    void outputAndGradients(ScaledAttentionCase c) {
        for (DType type : List.of(DType.FLOAT8_E5M2, E4M3)) {
            if (isRefused(c, c.problem(), type)) {
                continue;
            }
            Run run = new Run(c);
            Heads incoming = c.single(open, type, c.heads(), 30);
            Heads[] outgoing = c.triple(open, type, 0);
            TensorScale dO = scale(0, 300);
            TensorScale dP = scale(0, 2000);
            TensorScale dqkv = scale(0, 100);
            run.tensors
                    .scales(new AttentionScales(run.qkv, run.softmax, run.written, dO, dP, dqkv))
                    .outputGradient(incoming.view)
                    .queryGradient(outgoing[0].view)
                    .keyGradient(outgoing[1].view)
                    .valueGradient(outgoing[2].view);
            FusedAttention.forward(c.problem(), run.tensors, open.stream());
            checkForward(run);
            FusedAttention.backward(c.problem(), run.tensors, open.stream());
            checkBackward(run, incoming, outgoing, type);
        }
    }

    private static void checkForward(Run run) {
        ScaledAttentionCase c = run.c;
        double[] expected = new double[run.output.values.length];
        double largestWeight = 0;
        double largest = 0;
        double unit = run.unit();
        Rounding weightRounding = Rounding.of(run.softmax, E4M3);
        Rounding outputRounding = Rounding.of(run.written, E4M3);
        for (int b = 0; b < c.lengths().length; b++) {
            for (int head = 0; head < c.heads(); head++) {
                double[][] weights = run.weights(b, head);
                for (int i = 0; i < weights.length; i++) {
                    for (int j = 0; j < weights.length; j++) {
                        largestWeight = Math.max(largestWeight, weights[i][j]);
                        weights[i][j] = weightRounding.of(weights[i][j]);
                    }
                    for (int d = 0; d < c.headDim(); d++) {
                        double sum = 0;
                        for (int j = 0; j < weights.length; j++) {
                            sum += weights[i][j] * run.inputs[2].values[run.inputs[2].at(b, j, c.keyHead(head)) + d];
                        }
                        sum *= unit;
                        largest = Math.max(largest, Math.abs(sum));
                        expected[run.output.at(b, i, head) + d] = outputRounding.of(sum);
                    }
                }
            }
        }
        compare("output", expected, run.output, run.written, E4M3, run.c, FORWARD);
        assertLargest("output", largest, run.written);
        if (REFERENCE) {
            assertLargest("softmax", largestWeight, run.softmax);
        }
        double found = value(run.softmax.amax());
        assertTrue(found > 0 && found <= 1.001, "amax of the weights: " + found);
    }

    private static void checkBackward(Run run, Heads incoming, Heads[] outgoing, DType type) {
        ScaledAttentionCase c = run.c;
        AttentionScales scales = run.tensors.scales();
        double unitO = value(scales.outputGradient().scaleInverse());
        double[] o = Float8Witness.values(run.output.buffer.toBytes(open.stream()), E4M3);
        double[][] sums = new double[3][];
        for (int t = 0; t < 3; t++) {
            sums[t] = new double[outgoing[t].values.length];
        }
        double largestScore = 0;
        double unit = run.unit();
        double unitOfOutput = value(run.written.scaleInverse());
        Rounding weightRounding = Rounding.of(run.softmax, E4M3);
        Rounding scoreRounding = Rounding.of(Checks.given("scoreGradient", scales.scoreGradient()), type);
        Rounding gradientRounding = Rounding.of(Checks.given("qkvGradient", scales.qkvGradient()), type);
        for (int b = 0; b < c.lengths().length; b++) {
            for (int head = 0; head < c.heads(); head++) {
                int keyHead = c.keyHead(head);
                double[][] weights = run.weights(b, head);
                for (int i = 0; i < weights.length; i++) {
                    int atO = run.output.at(b, i, head);
                    double delta = 0;
                    for (int d = 0; d < c.headDim(); d++) {
                        delta += incoming.values[atO + d] * unitO * o[atO + d] * unitOfOutput;
                    }
                    for (int j = 0; j < weights.length; j++) {
                        int atV = run.inputs[2].at(b, j, keyHead);
                        double dp = c.dot(incoming, atO, run.inputs[2], atV) * unitO * unit;
                        double ds = c.problem().scale() * weights[i][j] * (dp - delta);
                        largestScore = Math.max(largestScore, Math.abs(ds));
                        ds = scoreRounding.of(ds) * unit;
                        double weight = weightRounding.of(weights[i][j]) * unitO;
                        int atQ = run.inputs[0].at(b, i, head);
                        int atK = run.inputs[1].at(b, j, keyHead);
                        for (int d = 0; d < c.headDim(); d++) {
                            sums[0][outgoing[0].at(b, i, head) + d] += ds * run.inputs[1].values[atK + d];
                            sums[1][outgoing[1].at(b, j, keyHead) + d] += ds * run.inputs[0].values[atQ + d];
                            sums[2][outgoing[2].at(b, j, keyHead) + d] += weight * incoming.values[atO + d];
                        }
                    }
                }
            }
        }
        double largest = 0;
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < sums[t].length; i++) {
                largest = Math.max(largest, Math.abs(sums[t][i]));
                sums[t][i] = gradientRounding.of(sums[t][i]);
            }
            compare("gradient " + t, sums[t], outgoing[t], scales.qkvGradient(), type, c, BACKWARD);
        }
        assertLargest("gradients", largest, scales.qkvGradient());
        assertLargest("gradients of scores", largestScore, scales.scoreGradient());
    }

    private static void assertLargest(String what, double expected, TensorScale scale) {
        assertEquals(expected, value(scale.amax()), LARGEST * expected, "amax of " + what);
    }

    /** Compares rows of valid tokens. */
    private static void compare(
            String what,
            double[] expected,
            Heads heads,
            TensorScale scale,
            DType dtype,
            ScaledAttentionCase c,
            Tolerance tolerance) {
        double[] found = Float8Witness.values(heads.buffer.toBytes(open.stream()), dtype);
        double inverse = value(scale.scaleInverse());
        List<Double> wanted = new ArrayList<>();
        List<Float> got = new ArrayList<>();
        int count = (int) heads.view.size(2);
        for (int b = 0; b < c.lengths().length; b++) {
            for (int i = 0; i < c.lengths()[b]; i++) {
                for (int n = 0; n < count * c.headDim(); n++) {
                    int at = heads.at(b, i, 0) + n;
                    wanted.add(expected[at]);
                    got.add((float) (found[at] * inverse));
                }
            }
        }
        double[] first = wanted.stream().mapToDouble(Double::doubleValue).toArray();
        float[] second = new float[first.length];
        for (int i = 0; i < second.length; i++) {
            second[i] = got.get(i);
        }
        open.assertClose(what, first, second, 0, tolerance);
    }

    private static void refused(String text, Run run) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> FusedAttention.forward(run.c.problem(), run.tensors, open.stream()));
    }

    private static void refusedBackward(String text, Run run) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> FusedAttention.backward(run.c.problem(), run.tensors, open.stream()));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void whatForwardRefuses() {
        ScaledAttentionCase c = new ScaledAttentionCase(QkvLayout.BSHD_BSHD_BSHD, MaskType.CAUSAL, 1, 1, 128, 16, 16);
        Run run = new Run(c);
        AttentionScales scales = AttentionScales.ofForward(run.qkv, run.softmax, run.written);
        refused("query: expected scales for FLOAT8_E4M3[1, 16, 1, 128], got none; call scales(...) before", run);
        run.tensors.scales(scales);
        run.tensors.query(of(DType.BFLOAT16, 1, 16, 1, 128));
        refused("query: expected elements of FLOAT8_E4M3, got BFLOAT16[1, 16, 1, 128]", run);
        run.tensors.query(run.inputs[0].view).output(of(DType.BFLOAT16, 1, 16, 1, 128));
        refused("output: expected FLOAT8_E4M3[1, 16, 1, 128], got BFLOAT16[1, 16, 1, 128]", run);
        run.tensors.output(run.output.view);
        Tensor two = of(DType.FLOAT32, 2);
        TensorScale wide = new TensorScale(two, run.softmax.scaleInverse(), run.softmax.amax());
        run.tensors.scales(AttentionScales.ofForward(run.qkv, wide, run.written));
        refused("scales.softmax.scale: expected FLOAT32[1], got FLOAT32[2]", run);
        TensorScale shared = new TensorScale(run.softmax.scale(), run.softmax.scaleInverse(), run.written.amax());
        run.tensors.scales(AttentionScales.ofForward(run.qkv, shared, run.written));
        refused(
                "scales.output.amax: expected memory of its own, got some of scales.softmax.amax's; it is written to while"
                        + " that is read or written",
                run);
        assertThrown(
                IllegalArgumentException.class,
                "scales: expected none, for these kernels compute in 16 and 32 bits, got FLOAT8_E4M3[1, 16, 1, 128] with"
                        + " scales; call FusedAttention, or scales(null)",
                () -> Attention.forward(c.problem(), run.tensors.scales(scales), open.stream()));
        assertThrown(
                NullPointerException.class,
                "softmax: expected a value, got null",
                () -> AttentionScales.ofForward(run.qkv, null, run.written));
    }

    @Test
    void whatBackwardRefuses() {
        ScaledAttentionCase c = new ScaledAttentionCase(QkvLayout.BSHD_BSHD_BSHD, MaskType.CAUSAL, 1, 1, 128, 16, 16);
        Run run = new Run(c);
        Heads[] outgoing = c.triple(open, DType.FLOAT8_E5M2, 0);
        run.tensors
                .scales(AttentionScales.ofForward(run.qkv, run.softmax, run.written))
                .outputGradient(c.single(open, DType.FLOAT8_E5M2, 1, 30).view)
                .queryGradient(outgoing[0].view)
                .keyGradient(outgoing[1].view)
                .valueGradient(outgoing[2].view);
        FusedAttention.forward(c.problem(), run.tensors, open.stream());
        refusedBackward(
                "scales: expected a scale of the outputGradient, which backward needs, got none; make new"
                        + " AttentionScales(...) with all six",
                run);
        run.tensors.valueGradient(of(DType.BFLOAT16, 1, 16, 1, 128));
        refusedBackward(
                "valueGradient: expected FLOAT8_E5M2 or FLOAT8_E4M3, for the query is in eight bits, got"
                        + " BFLOAT16[1, 16, 1, 128]",
                run);
        run.tensors.valueGradient(of(E4M3, 1, 16, 1, 128));
        refusedBackward("valueGradient: expected elements of FLOAT8_E5M2, got FLOAT8_E4M3[1, 16, 1, 128]", run);
    }

    /** What the reference refuses in other words cuDNN refuses, too. */
    @Test
    void whatHopperLacks() {
        AttentionProblem plain = AttentionProblem.of(QkvLayout.BSHD_BSHD_BSHD, 0.1f);
        assertRefused(null, plain.withMask(MaskType.PADDING_CAUSAL), 128);
        assertRefused(null, plain.forInference(), 64);
        assertRefused("heads of 128 on Hopper, got 64 and 64", plain, 64);
        assertRefused("multiples of 16 up to 256, got 40 and 40", plain.forInference(), 40);
        assertRefused("bottom-right mask on Blackwell", plain.withMask(MaskType.CAUSAL_BOTTOM_RIGHT), 128);
        assertRefused(
                "THD needs cuDNN 9.23", plain.withLayout(QkvLayout.THD_THD_THD).withMask(MaskType.PADDING), 128);
    }

    private static void assertRefused(String reason, AttentionProblem problem, long headDim) {
        String refusal = FusedAttention.refusal(
                problem, E4M3, DType.FLOAT8_E5M2, AttentionSizes.of(2, 128, 4, headDim), open.device());
        if (reason == null) {
            assertNull(refusal);
        } else {
            assertNotNull(refusal, reason);
            assertTrue(!REFERENCE || refusal.contains(reason), refusal);
        }
    }
}
