package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.AttentionRun;
import dev.chagres.conformance.AttentionRun.Case;
import dev.chagres.conformance.AttentionRun.Padding;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.QkvLayout.Packing;
import dev.chagres.witness.AttentionDropoutWitness;
import dev.chagres.witness.AttentionWitness;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Our own attention against double precision: every layout, mask and type, heads and lengths of keys of their own. */
@Tag("L0")
@Tag("L1")
class AttentionConformance {
    private static final float PROBABILITY = 0.2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** {@code Attention}, with the scratch that its backward call takes. */
    private static final AttentionRun.Kernels TILED = new AttentionRun.Kernels() {
        @Override
        public void forward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
            Attention.forward(problem, tensors, stream);
        }

        @Override
        public void backward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
            Attention.backward(problem, tensors, open.scope().like(tensors.statistics()), stream);
        }
    };

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (QkvLayout layout : QkvLayout.values()) {
                for (TokenRows tokens : arrangements(layout.format())) {
                    cases.add(Case.of(dtype, layout, 2, 16, tokens));
                }
                TokenRows tokens = arrangements(layout.format()).getLast();
                for (int headDim : new int[] {8, 24, 64, 128, 256}) {
                    cases.add(Case.of(dtype, layout, 1, headDim, tokens));
                }
                for (MaskType mask : MaskType.values()) {
                    if (mask.isPadding()) {
                        cases.add(Case.of(dtype, layout, 2, 16, tokens).with(mask, -1, -1));
                        cases.add(Case.of(dtype, layout, 2, 16, tokens).with(mask, 3, mask.isCausal() ? 0 : 5));
                    }
                }
            }
        }
        return cases;
    }

    private static List<TokenRows> arrangements(QkvFormat format) {
        return format == QkvFormat.THD
                ? List.of(TokenRows.packed(1), TokenRows.packed(0, 1, 0, 2, 0), TokenRows.packed(15, 64, 65, 0, 129))
                : List.of(
                        TokenRows.padded(format, 1, 1, 0, 1),
                        TokenRows.padded(format, 64, 64, 64),
                        TokenRows.padded(format, 65, 17, 65, 0));
    }

    /** Fewer heads of keys, heads of values of another size, keys of other lengths, and queries that see no key. */
    static List<Case> keysOfTheirOwn() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            for (QkvFormat format : QkvFormat.values()) {
                TokenRows queries = rows(format, 70, 33, 1, 70, 9);
                TokenRows keys = rows(format, 130, 65, 130, 3, 0);
                for (Packing packing : List.of(Packing.NONE, Packing.KEY_VALUE)) {
                    QkvLayout layout =
                            packing == Packing.NONE ? QkvLayout.separate(format) : QkvLayout.packedKeyValue(format);
                    Case base = Case.of(dtype, layout, 4, 32, queries);
                    for (MaskType mask : MaskType.values()) {
                        if (mask.isPadding()) {
                            cases.add(base.withKeys(2, 32, keys).with(mask, -1, -1));
                            cases.add(base.withKeys(1, 32, keys).with(mask, 20, mask.isCausal() ? 0 : 4));
                        }
                    }
                }
                cases.add(Case.of(dtype, QkvLayout.separate(format), 4, 32, queries)
                        .withKeys(4, 64, keys));
                cases.add(Case.of(dtype, QkvLayout.separate(format), 6, 40, queries)
                        .withKeys(3, 8, queries));
            }
        }
        return cases;
    }

    private static TokenRows rows(QkvFormat format, int padded, Integer... lengths) {
        return format == QkvFormat.THD ? TokenRows.packed(lengths) : TokenRows.padded(format, padded, lengths);
    }

    @ParameterizedTest
    @MethodSource({"cases", "keysOfTheirOwn"})
    void outputAndGradients(Case c) {
        new AttentionRun(open, c, c.problem()).check(TILED, AttentionWitness.Keep.ALL, Padding.ZERO);
    }

    static List<Case> droppingCases() {
        return List.of(
                Case.of(DType.FLOAT32, QkvLayout.T3HD, 2, 8, TokenRows.packed(64, 1, 0, 65)),
                Case.of(DType.FLOAT32, QkvLayout.THD_THD_THD, 3, 40, TokenRows.packed(63, 200))
                        .with(MaskType.PADDING_CAUSAL, -1, 0),
                Case.of(DType.FLOAT32, QkvLayout.BSHD_BS2HD, 4, 64, TokenRows.padded(QkvFormat.BSHD, 65, 65, 17))
                        .withKeys(2, 64, TokenRows.padded(QkvFormat.BSHD, 33, 33, 33)),
                Case.of(DType.BFLOAT16, QkvLayout.SB3HD, 2, 16, TokenRows.padded(QkvFormat.SBHD, 66, 3, 66)),
                Case.of(DType.FLOAT16, QkvLayout.THD_T2HD, 2, 16, TokenRows.packed(33, 7))
                        .with(MaskType.PADDING_CAUSAL_BOTTOM_RIGHT, -1, 0));
    }

    @ParameterizedTest
    @MethodSource("droppingCases")
    void dropoutFollowsTheFormula(Case c) {
        long seed = open.random().nextLong();
        long offset = 1L << 40 | 77;
        AttentionRun run = new AttentionRun(open, c, c.problem().withDropout(PROBABILITY));
        run.tensors().rngState(open.longs(seed, offset));
        run.check(TILED, new AttentionDropoutWitness(PROBABILITY, c.heads(), seed, offset), Padding.ZERO);
    }

    /** In inference nothing is dropped, and no random state is wanted. */
    @Test
    void inferenceDropsNothing() {
        Case c = Case.of(DType.FLOAT32, QkvLayout.T3HD, 2, 16, TokenRows.packed(17, 40));
        AttentionProblem problem = c.problem().withDropout(PROBABILITY).forInference();
        new AttentionRun(open, c, problem).check(TILED, AttentionWitness.Keep.ALL, Padding.ZERO);
    }

    @Test
    void equalCallsGiveEqualBits() {
        Case c = Case.of(DType.FLOAT32, QkvLayout.THD_THD_THD, 4, 32, TokenRows.packed(200, 65))
                .withKeys(2, 32, TokenRows.packed(100, 33));
        AttentionRun run = new AttentionRun(open, c, c.problem());
        float[][] first = results(run, c);
        float[][] second = results(run, c);
        for (int i = 0; i < first.length; i++) {
            assertArrayEquals(first[i], second[i]);
        }
    }

    private static float[][] results(AttentionRun run, Case c) {
        AttentionTensors tensors = run.tensors();
        TILED.forward(c.problem(), tensors, open.stream());
        TILED.backward(c.problem(), tensors, open.stream());
        return new float[][] {
            open.read(tensors.output()),
            open.read(tensors.queryGradient()),
            open.read(tensors.keyGradient()),
            open.read(tensors.valueGradient())
        };
    }

    @Test
    void withoutKeysOutputAndGradientsAreZero() {
        AttentionTensors tensors = empty(5, 0);
        AttentionProblem problem = AttentionProblem.of(QkvLayout.THD_THD_THD, 1).withMask(MaskType.PADDING);
        TILED.forward(problem, tensors, open.stream());
        assertArrayEquals(new float[5 * 32], open.read(tensors.output()));
        for (float sum : open.read(tensors.statistics())) {
            assertEquals(Float.NEGATIVE_INFINITY, sum);
        }
        TILED.backward(problem, tensors, open.stream());
        assertArrayEquals(new float[5 * 32], open.read(tensors.queryGradient()));
    }

    @Test
    void withoutQueriesGradientsOfKeysAreZero() {
        AttentionTensors tensors = empty(0, 5);
        AttentionProblem problem = AttentionProblem.of(QkvLayout.THD_THD_THD, 1).withMask(MaskType.PADDING);
        TILED.forward(problem, tensors, open.stream());
        TILED.backward(problem, tensors, open.stream());
        assertArrayEquals(new float[5 * 32], open.read(tensors.keyGradient()));
        assertArrayEquals(new float[5 * 32], open.read(tensors.valueGradient()));
    }

    /** Two heads of 16 over one sequence. */
    private static AttentionTensors empty(int queries, int keys) {
        return new AttentionTensors()
                .query(open.unwritten(DType.FLOAT32, queries, 2, 16))
                .key(open.unwritten(DType.FLOAT32, keys, 2, 16))
                .value(open.unwritten(DType.FLOAT32, keys, 2, 16))
                .output(open.unwritten(DType.FLOAT32, queries, 2, 16))
                .statistics(open.unwritten(DType.FLOAT32, queries, 2, 1))
                .queryLengths(open.ints(0, queries), queries)
                .keyLengths(open.ints(0, keys), keys)
                .outputGradient(open.unwritten(DType.FLOAT32, queries, 2, 16))
                .queryGradient(open.unwritten(DType.FLOAT32, queries, 2, 16))
                .keyGradient(open.unwritten(DType.FLOAT32, keys, 2, 16))
                .valueGradient(open.unwritten(DType.FLOAT32, keys, 2, 16));
    }

    @Test
    void refusals() {
        assertTrue(Attention.takes(8) && Attention.takes(256));
        assertEquals(
                0, List.of(0L, 4L, 12L, 264L).stream().filter(Attention::takes).count());
        Case c = Case.of(DType.FLOAT32, QkvLayout.THD_THD_THD, 2, 12, TokenRows.packed(4));
        AttentionRun run = new AttentionRun(open, c, c.problem());
        assertThrown(
                IllegalArgumentException.class,
                "query: expected heads of a multiple of 8 elements, at most 256, got FLOAT32[4, 2, 12]",
                () -> Attention.forward(c.problem(), run.tensors(), open.stream()));
        Case good = Case.of(DType.FLOAT32, QkvLayout.THD_THD_THD, 2, 16, TokenRows.packed(4));
        AttentionTensors tensors = new AttentionRun(open, good, good.problem()).tensors();
        assertThrown(
                IllegalArgumentException.class,
                "delta: expected FLOAT32[4, 2, 1], got FLOAT32[4, 2]",
                () -> Attention.backward(
                        good.problem(), tensors, open.scope().tensor(DType.FLOAT32, 4, 2), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "delta: expected memory of its own, got some of statistics's; it is written to while that is read or"
                        + " written",
                () -> Attention.backward(good.problem(), tensors, tensors.statistics(), open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Case c = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(8, 8));
        AttentionTensors tensors = new AttentionRun(open, c, c.problem()).tensors();
        AttentionProblem problem = c.problem();
        Tensor delta = open.scope().like(tensors.statistics());
        Allocation.assertNone("attention", () -> {
            Attention.forward(problem, tensors, open.stream());
            Attention.backward(problem, tensors, delta, open.stream());
        });
    }
}
