package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.AttentionRun;
import dev.chagres.conformance.AttentionRun.Case;
import dev.chagres.conformance.AttentionRun.Padding;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.internal.Inside;
import dev.chagres.te.QkvLayout.Packing;
import dev.chagres.witness.AttentionWitness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code FusedAttention} against double precision: every layout, mask and 16-bit type, keys of their own. */
@Tag("L0")
@Tag("L1")
class FusedAttentionConformance {
    private static final float PROBABILITY = 0.25f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final AttentionRun.Kernels FUSED = new AttentionRun.Kernels() {
        @Override
        public void forward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
            FusedAttention.forward(problem, tensors, stream);
        }

        @Override
        public void backward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
            FusedAttention.backward(problem, tensors, stream);
        }
    };

    /** What cuDNN leaves in rows of padding is nobody's business. */
    private static Padding padding() {
        return Provider.current() == Provider.REFERENCE ? Padding.ZERO : Padding.ANY;
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
            for (QkvLayout layout : QkvLayout.values()) {
                for (TokenRows tokens : arrangements(layout.format())) {
                    cases.add(Case.of(dtype, layout, 2, 16, tokens));
                    for (MaskType mask : MaskType.values()) {
                        boolean full = layout.format() != QkvFormat.THD && tokens.paddingRows().length == 0;
                        if (mask.isPadding() || full) {
                            cases.add(Case.of(dtype, layout, 2, 32, tokens).with(mask, -1, -1));
                        }
                    }
                }
                TokenRows tokens = arrangements(layout.format()).getLast();
                for (int headDim : new int[] {8, 24, 64, 128, 256}) {
                    cases.add(Case.of(dtype, layout, 1, headDim, tokens));
                }
                cases.add(Case.of(dtype, layout, 2, 32, tokens).with(MaskType.PADDING, 3, 5));
                cases.add(Case.of(dtype, layout, 2, 32, tokens).with(MaskType.PADDING_CAUSAL, 7, 0));
            }
        }
        return cases;
    }

    private static List<TokenRows> arrangements(QkvFormat format) {
        return format == QkvFormat.THD
                ? List.of(TokenRows.packed(1), TokenRows.packed(0, 1, 0, 2, 0), TokenRows.packed(15, 64, 65, 0, 129))
                : List.of(
                        TokenRows.padded(format, 64, 64, 64),
                        TokenRows.padded(format, 129, 129),
                        TokenRows.padded(format, 65, 17, 65, 1));
    }

    /** Fewer heads of keys, heads of values of another size, keys of other lengths; no query sees nothing. */
    static List<Case> keysOfTheirOwn() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
            for (QkvFormat format : QkvFormat.values()) {
                TokenRows queries = rows(format, 70, 33, 1, 70);
                TokenRows keys = rows(format, 130, 65, 130, 71);
                for (Packing packing : List.of(Packing.NONE, Packing.KEY_VALUE)) {
                    QkvLayout layout =
                            packing == Packing.NONE ? QkvLayout.separate(format) : QkvLayout.packedKeyValue(format);
                    Case base = Case.of(dtype, layout, 4, 32, queries);
                    cases.add(base.withKeys(2, 32, keys).with(MaskType.PADDING, -1, -1));
                    cases.add(base.withKeys(1, 32, keys).with(MaskType.PADDING_CAUSAL, -1, -1));
                    cases.add(base.withKeys(4, 32, keys).with(MaskType.PADDING_CAUSAL_BOTTOM_RIGHT, -1, -1));
                }
                cases.add(Case.of(dtype, QkvLayout.separate(format), 4, 32, queries)
                        .withKeys(4, 64, keys)
                        .with(MaskType.PADDING, -1, -1));
            }
        }
        return cases;
    }

    private static TokenRows rows(QkvFormat format, int padded, Integer... lengths) {
        return format == QkvFormat.THD ? TokenRows.packed(lengths) : TokenRows.padded(format, padded, lengths);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void outputAndGradients(Case c) {
        new AttentionRun(open, c, c.problem()).check(FUSED, AttentionWitness.Keep.ALL, padding());
    }

    /** Of these cuDNN may refuse some: then it says so when it is asked, and the calls throw. */
    @ParameterizedTest
    @MethodSource("keysOfTheirOwn")
    void keysOfTheirOwn(Case c) {
        AttentionSizes sizes = new AttentionSizes(
                c.queries().lengths().size(),
                c.heads(),
                c.keyHeads(),
                c.headDim(),
                c.valueDim(),
                length(c.queries()),
                length(c.keys()),
                c.queries().tokens(),
                c.keys().tokens(),
                0,
                0);
        String refusal = FusedAttention.refusal(c.problem(), c.dtype(), sizes, open.device());
        AttentionRun run = new AttentionRun(open, c, c.problem());
        if (refusal == null) {
            run.check(FUSED, AttentionWitness.Keep.ALL, padding());
        } else {
            System.out.println("  refused " + c + ": " + refusal);
            assertEquals(Provider.CUDA, Provider.current(), "the reference takes every case");
            assertThrows(
                    TransformerEngineException.class, () -> run.check(FUSED, AttentionWitness.Keep.ALL, padding()));
        }
    }

    private static long length(TokenRows tokens) {
        return tokens.format() == QkvFormat.THD ? tokens.longest() : tokens.padded();
    }

    @Test
    void deterministicGradientsHaveTheSameBits() {
        Case c = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 4, 64, TokenRows.packed(200, 300));
        AttentionProblem problem = c.problem().deterministic();
        AttentionRun run = new AttentionRun(open, c, problem);
        run.check(FUSED, AttentionWitness.Keep.ALL, padding());
        Tensor gradient = open.scope().view(Inside.root(run.tensors().queryGradient()), 0, 500L * 3 * 4 * 64);
        float[] first = open.read(gradient);
        FusedAttention.backward(problem, run.tensors(), open.stream());
        assertArrayEquals(first, open.read(gradient));
    }

    @Test
    void inferenceDropsNothing() {
        Case c = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(17, 40));
        AttentionProblem problem = c.problem().withDropout(PROBABILITY).forInference();
        new AttentionRun(open, c, problem).check(FUSED, AttentionWitness.Keep.ALL, padding());
    }

    /**
     * With equal scores and values that are rows of the identity, the output shows each kept weight: the mask of dropout. The
     * same mask must then be in the outputs and gradients of any other input.
     */
    @ParameterizedTest
    @MethodSource("sixteenBits")
    void dropoutDropsTheSameWeightsForwardAndBackward(DType dtype) {
        int length = 64;
        Case c = Case.of(dtype, QkvLayout.THD_THD_THD, 2, 64, TokenRows.packed(length, length));
        AttentionProblem problem = c.problem().withDropout(PROBABILITY);
        Tensor state = open.longs(open.random().nextLong(), 3);
        RealMatrix zero = new BlockRealMatrix(2 * length, 128);
        RealMatrix identity = new BlockRealMatrix(2 * length, 128);
        for (int row = 0; row < 2 * length; row++) {
            identity.setEntry(row, row % length, 1);
            identity.setEntry(row, 64 + row % length, 1);
        }
        AttentionRun shows = new AttentionRun(open, c, problem, zero, zero, identity);
        shows.tensors().rngState(state);
        FusedAttention.forward(problem, shows.tensors(), open.stream());
        float[] shown = open.read(shows.tensors().output());
        long dropped = 0;
        for (float weight : shown) {
            dropped += weight == 0 ? 1 : 0;
            assertEquals(weight == 0 ? 0 : 1 / (1 - PROBABILITY) / length, weight, 1e-4);
        }
        double expected = PROBABILITY * shown.length;
        assertEquals(expected, dropped, 6 * Math.sqrt(expected * (1 - PROBABILITY)), "six standard deviations");
        AttentionWitness.Keep keep = (sequence, head, query, key) ->
                shown[((sequence * length + query) * 2 + head) * 64 + key] == 0 ? 0 : 1 / (1 - (double) PROBABILITY);
        AttentionRun run = new AttentionRun(open, c, problem);
        run.tensors().rngState(state);
        run.check(FUSED, keep, padding());
    }

    static List<DType> sixteenBits() {
        return List.of(DType.BFLOAT16, DType.FLOAT16);
    }

    /** Geometries are remembered; more of them than are, in turn and again, must not disturb one another. */
    @Test
    void geometriesInTurn() {
        for (int round = 0; round < 2; round++) {
            for (int length : new int[] {5, 64, 5, 33, 128, 17, 5, 64}) {
                Case c = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(length, 3));
                new AttentionRun(open, c, c.problem()).check(FUSED, AttentionWitness.Keep.ALL, padding());
                Case padded = Case.of(
                        DType.BFLOAT16,
                        QkvLayout.BSHD_BSHD_BSHD,
                        2,
                        16,
                        TokenRows.padded(QkvFormat.BSHD, length, length));
                new AttentionRun(open, padded, padded.problem()).check(FUSED, AttentionWitness.Keep.ALL, padding());
            }
        }
    }

    @Test
    void statisticsShapes() {
        Case packed = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(5, 3));
        AttentionTensors tensors = new AttentionRun(open, packed, packed.problem()).tensors();
        assertEquals(Shape.of(8, 2, 1), FusedAttention.statisticsShape(packed.problem(), tensors));
        Case dense = Case.of(DType.BFLOAT16, QkvLayout.SB3HD, 2, 16, TokenRows.padded(QkvFormat.SBHD, 7, 5, 3, 7));
        tensors = new AttentionRun(open, dense, dense.problem()).tensors();
        assertEquals(Shape.of(3, 2, 7, 1), FusedAttention.statisticsShape(dense.problem(), tensors));
        assertEquals(Shape.of(3, 2, 7, 1), tensors.statistics().shape());
        for (Tensor query :
                List.of(open.scope().tensor(DType.BFLOAT16), open.scope().tensor(DType.BFLOAT16, 8, 16))) {
            AttentionTensors flat = new AttentionTensors().query(query);
            String text = "query: expected [T, h, d], [B, S, h, d] or [S, B, h, d], got BFLOAT16" + query.shape();
            assertThrown(
                    IllegalArgumentException.class, text, () -> FusedAttention.statisticsShape(packed.problem(), flat));
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> FusedAttention.statistics(packed.problem(), flat, open.scope()));
        }
    }

    @Test
    void saysWhatItTakesAndWhyNot() {
        AttentionProblem packed = AttentionProblem.of(QkvLayout.T3HD, 0.125f).withMask(MaskType.PADDING);
        AttentionSizes sizes = AttentionSizes.of(4, 128, 8, 64);
        assertNull(FusedAttention.refusal(packed, DType.BFLOAT16, sizes, open.device()));
        assertNull(FusedAttention.refusal(packed.deterministic(), DType.FLOAT16, sizes, open.device()));
        String reason = refusal(packed.withMask(MaskType.NO_MASK), sizes);
        assertTrue(reason.contains("THD"), reason);
        String empty = refusal(packed, sizes.withTokens(0));
        assertFalse(empty.isEmpty(), empty);
        AttentionProblem separate = packed.withLayout(QkvLayout.THD_THD_THD);
        assertNull(FusedAttention.refusal(
                separate, DType.BFLOAT16, sizes.withKeyHeads(2).withKeys(256, 1024), open.device()));
        String groups = refusal(separate, sizes.withKeyHeads(3));
        assertFalse(groups.isEmpty(), groups);
    }

    private static String refusal(AttentionProblem problem, AttentionSizes sizes) {
        return Objects.requireNonNull(FusedAttention.refusal(problem, DType.BFLOAT16, sizes, open.device()));
    }

    @Test
    void randomStates() {
        Tensor state = open.longs(0, 0);
        FusedAttention.extractSeedAndOffset(state, -5, 1L << 40, open.stream());
        assertArrayEquals(new long[] {-5, 1L << 40}, state.toLongs(open.stream()));
        Tensor seed = open.longs(17);
        FusedAttention.extractSeedAndOffset(state, seed, open.longs(1L << 40), 9, open.stream());
        assertArrayEquals(new long[] {17, (1L << 40) + 9}, state.toLongs(open.stream()));
    }

    /** TE counts the offsets of a thread: 16 more with each call, the call's own where it is captured. */
    @Test
    void randomStatesThatCountThemselves() {
        Tensor state = open.longs(0, 0);
        Tensor seed = open.longs(-3);
        FusedAttention.populateRngState(state, seed, open.stream());
        long[] first = state.toLongs(open.stream());
        assertEquals(-3, first[0]);
        FusedAttention.populateRngState(state, seed, open.stream());
        assertArrayEquals(new long[] {-3, first[1] + 16}, state.toLongs(open.stream()));
        try (Graph graph = open.stream().capture(() -> FusedAttention.populateRngState(state, seed, open.stream()))) {
            seed.set(open.stream(), 8L);
            for (int replay = 0; replay < 2; replay++) {
                state.zero(open.stream());
                graph.launch();
                assertArrayEquals(new long[] {8, first[1] + 32}, state.toLongs(open.stream()));
            }
        }
        FusedAttention.populateRngState(state, seed, open.stream());
        assertArrayEquals(new long[] {8, first[1] + 48}, state.toLongs(open.stream()));
    }

    /** Rows behind the last packed sequence stay as they are. */
    @Test
    void tokensBehindTheLastSequence() {
        Case c = Case.of(DType.BFLOAT16, QkvLayout.THD_THD_THD, 2, 16, TokenRows.packed(5, 3));
        AttentionRun run = new AttentionRun(open, c, c.problem());
        AttentionTensors tensors = run.tensors();
        tensors.queryLengths(open.ints(0, 5, 7), 5).keyLengths(open.ints(0, 5, 7), 5);
        FusedAttention.forward(c.problem(), tensors, open.stream());
        float[] output = open.read(tensors.output());
        assertTrue(Float.isNaN(output[7 * 32]) || Provider.current() == Provider.CUDA);
        assertFalse(Float.isNaN(output[7 * 32 - 1]));
    }

    @Test
    void makesNoGarbage() {
        Case c = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(8, 8));
        Case other = Case.of(DType.BFLOAT16, QkvLayout.T3HD, 2, 16, TokenRows.packed(16, 8));
        AttentionTensors first = new AttentionRun(open, c, c.problem()).tensors();
        AttentionTensors second = new AttentionRun(open, other, other.problem()).tensors();
        AttentionProblem problem = c.problem();
        Allocation.assertNone("attention", () -> {
            FusedAttention.forward(problem, first, open.stream());
            FusedAttention.forward(problem, second, open.stream());
            FusedAttention.backward(problem, second, open.stream());
            FusedAttention.backward(problem, first, open.stream());
        });
        Tensor state = open.longs(0, 0);
        Tensor seed = open.longs(17);
        Tensor offset = open.longs(5);
        Allocation.assertNone("random states", () -> {
            FusedAttention.extractSeedAndOffset(state, 5, 6, open.stream());
            FusedAttention.extractSeedAndOffset(state, seed, offset, 2, open.stream());
        });
        assertEquals("[17, 7]", Arrays.toString(state.toLongs(open.stream())));
    }
}
