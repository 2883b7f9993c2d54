package dev.chagres.te;

import static dev.chagres.te.FusedScoresRun.present;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionScores;
import dev.chagres.te.FusedScoresRun.Case;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * {@code FusedAttention} with a bias, ALiBi and other softmaxes: outputs against double precision, gradients against finite differences of
 * that, both against our own kernels.
 */
@Tag("L0")
@Tag("L1")
class FusedScoreModsConformance {
    private static final int DRAWN = 40;
    private static final float PROBABILITY = 0.25f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Every shape of a bias under every mask that cuDNN has one under; ALiBi; sinks; and drawn ones. */
    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (MaskType mask : List.of(MaskType.NO_MASK, MaskType.CAUSAL, MaskType.PADDING, MaskType.PADDING_CAUSAL)) {
            QkvFormat format = mask.isCausal() ? QkvFormat.SBHD : QkvFormat.BSHD;
            Case plain = Case.of(DType.BFLOAT16, mask, 4, 16, rows(format, mask, 24, 17, 24));
            cases.add(plain.withBias(1, 1));
            cases.add(plain.withBias(1, 4));
            cases.add(plain.withBias(2, 1));
            cases.add(plain.withBias(2, 4));
            cases.add(plain.withSoftmax(SoftmaxType.OFF_BY_ONE));
            cases.add(plain.withSoftmax(SoftmaxType.LEARNABLE));
            cases.add(plain.withBias(1, 4).withSoftmax(SoftmaxType.LEARNABLE));
            if (mask.isCausal()) {
                cases.add(plain.withAlibi());
                cases.add(plain.withAlibi().withSoftmax(SoftmaxType.LEARNABLE));
                cases.add(plain.withBias(1, 4).withWindow(5));
            }
        }
        cases.add(Case.of(DType.BFLOAT16, MaskType.PADDING_CAUSAL, 6, 16, TokenRows.packed(24, 1, 0, 17))
                .withAlibi());
        SplittableRandom random = new SplittableRandom(OpenDevice.seed());
        for (int i = 0; i < DRAWN; i++) {
            cases.add(drawn(random));
        }
        return cases;
    }

    private static Case drawn(SplittableRandom random) {
        MaskType mask = List.of(MaskType.NO_MASK, MaskType.CAUSAL, MaskType.PADDING, MaskType.PADDING_CAUSAL)
                .get(random.nextInt(4));
        QkvFormat format = random.nextBoolean() ? QkvFormat.BSHD : QkvFormat.SBHD;
        int batch = 1 + random.nextInt(3);
        int heads = List.of(1, 2, 3, 4, 6).get(random.nextInt(5));
        TokenRows queries = rows(format, mask, random, batch);
        Case c = Case.of(
                        random.nextBoolean() ? DType.BFLOAT16 : DType.FLOAT16,
                        mask,
                        heads,
                        8 * (1 + random.nextInt(4)),
                        queries)
                .withKeys(
                        heads % 2 == 0 && random.nextBoolean() ? heads / 2 : heads,
                        random.nextBoolean() ? queries : rows(format, mask, random, batch));
        c = switch (random.nextInt(mask.isCausal() ? 4 : 3)) {
            case 0 -> c;
            case 3 -> c.withAlibi();
            default -> c.withBias(random.nextBoolean() ? 1 : batch, random.nextBoolean() ? 1 : heads);
        };
        SoftmaxType softmax = SoftmaxType.values()[random.nextInt(3)];
        return c.biasType() == BiasType.NO_BIAS && softmax == SoftmaxType.VANILLA
                ? c.withSoftmax(SoftmaxType.LEARNABLE)
                : c.withSoftmax(softmax);
    }

    private static TokenRows rows(QkvFormat format, MaskType mask, SplittableRandom random, int batch) {
        int padded = 2 + random.nextInt(40);
        Integer[] lengths = new Integer[batch];
        for (int i = 0; i < batch; i++) {
            lengths[i] = mask.isPadding() ? 1 + random.nextInt(padded) : padded;
        }
        return TokenRows.padded(format, padded, lengths);
    }

    private static TokenRows rows(QkvFormat format, MaskType mask, int padded, Integer... lengths) {
        Integer[] full = new Integer[lengths.length];
        Arrays.fill(full, padded);
        return TokenRows.padded(format, padded, mask.isPadding() ? lengths : full);
    }

    /** Of these cuDNN may refuse some: then it says so when it is asked, and the calls throw. */
    @ParameterizedTest
    @MethodSource("cases")
    void outputAndGradients(Case c) {
        AttentionProblem problem = c.problem();
        String refusal = FusedAttention.refusal(problem, c.dtype(), c.sizes(), open.device());
        FusedScoresRun run = new FusedScoresRun(open, c);
        if (refusal != null) {
            System.out.println("  refused " + c + ": " + refusal);
            assertEquals(Provider.CUDA, Provider.current(), "the reference takes every case");
            assertThrows(TransformerEngineException.class, () -> {
                run.forward(problem);
                run.backward(problem);
            });
            return;
        }
        run.forward(problem);
        run.checkOutput();
        run.backward(problem);
        run.checkGradients();
    }

    static List<Case> longCases() {
        List<Case> cases = new ArrayList<>();
        for (int headDim : new int[] {64, 128}) {
            TokenRows padded = TokenRows.padded(QkvFormat.BSHD, 200, 129, 200);
            TokenRows full = TokenRows.padded(QkvFormat.SBHD, 257, 257, 257);
            Case plain = Case.of(DType.BFLOAT16, MaskType.PADDING, 4, headDim, padded);
            cases.add(plain.withBias(1, 4));
            cases.add(plain.withBias(2, 4).withKeys(2, TokenRows.padded(QkvFormat.BSHD, 136, 64, 136)));
            cases.add(plain.withSoftmax(SoftmaxType.LEARNABLE));
            Case causal = Case.of(DType.FLOAT16, MaskType.CAUSAL, 4, headDim, full);
            cases.add(causal.withBias(1, 1));
            cases.add(causal.withBias(2, 1).withSoftmax(SoftmaxType.LEARNABLE));
            cases.add(causal.withAlibi());
            cases.add(causal.withSoftmax(SoftmaxType.OFF_BY_ONE));
            cases.add(Case.of(DType.BFLOAT16, MaskType.PADDING_CAUSAL, 4, headDim, TokenRows.packed(129, 300, 64))
                    .withAlibi());
        }
        return cases;
    }

    /** Several tiles of a kernel, all elements. */
    @ParameterizedTest
    @MethodSource("longCases")
    void agreesWithOurKernels(Case c) {
        FusedScoresRun run = new FusedScoresRun(open, c);
        run.forward(c.problem());
        run.backward(c.problem());
        AttentionTensors own = ownOf(run.tensors);
        AttentionScores scores = new AttentionScores().bias(run.tensors.bias());
        if (c.biasType() == BiasType.POST_SCALE_BIAS) {
            scores.biasGradient(open.scope().like(present(run.tensors.bias())));
        }
        if (c.biasType() == BiasType.ALIBI) {
            scores.alibi(open.tensor(DType.FLOAT32, run.witness.slopes, c.heads()), AttentionScores.Alignment.TOP_LEFT);
        }
        boolean learnt = c.softmaxType() == SoftmaxType.LEARNABLE;
        scores.softmax(c.softmaxType(), learnt ? run.tensors.softmaxOffset() : null);
        if (learnt) {
            scores.sinksGradient(open.scope().tensor(DType.FLOAT32, c.heads()));
        }
        AttentionProblem problem = c.problem().withBiasType(BiasType.NO_BIAS).withSoftmaxType(SoftmaxType.VANILLA);
        Attention.forward(problem, own, scores, open.stream());
        Attention.backward(problem, own, scores, open.scope().like(own.statistics()), open.stream());
        assertRows(c, "output", c.queries(), own.output(), run.tensors.output());
        assertRows(c, "dq", c.queries(), own.queryGradient(), run.tensors.queryGradient());
        assertRows(c, "dk", c.keys(), own.keyGradient(), run.tensors.keyGradient());
        assertRows(c, "dv", c.keys(), own.valueGradient(), run.tensors.valueGradient());
        assertAll(c, "biasGradient", scores.biasGradient(), run.tensors.biasGradient());
        if (learnt) {
            assertAll(c, "sinksGradient", scores.sinksGradient(), run.tensors.softmaxOffsetGradient());
        }
    }

    /** The same inputs, with room for other results. */
    private static AttentionTensors ownOf(AttentionTensors from) {
        return new AttentionTensors()
                .query(from.query())
                .key(from.key())
                .value(from.value())
                .output(open.scope().like(from.output()))
                .statistics(open.scope().like(from.statistics()))
                .queryLengths(from.queryLengths(), from.queryLength())
                .keyLengths(from.keyLengths(), from.keyLength())
                .outputGradient(from.outputGradient())
                .queryGradient(open.scope().like(from.query()))
                .keyGradient(open.scope().like(from.key()))
                .valueGradient(open.scope().like(from.value()));
    }

    private static void assertRows(Case c, String what, TokenRows rows, Tensor expected, Tensor actual) {
        int columns = (int) (expected.count() / rows.tokens());
        float[] wanted = rows.entries(open.read(expected), columns);
        open.assertClose(
                what,
                doubles(wanted),
                rows.entries(open.read(actual), columns),
                0.5 / Math.sqrt(rows.longest()),
                Tolerances.attention(c.dtype()));
    }

    private static void assertAll(Case c, String what, @Nullable Tensor expected, @Nullable Tensor actual) {
        if (expected != null) {
            double[] wanted = doubles(open.read(expected));
            open.assertClose(what, wanted, open.read(present(actual)), 0.1, Tolerances.attention(c.dtype()));
        }
    }

    private static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            doubles[i] = values[i];
        }
        return doubles;
    }

    /**
     * With values that are rows of the identity the output shows which weights dropout keeps; the same are then kept in the gradients of
     * scores that are changed, and in the outputs of other values.
     */
    @ParameterizedTest
    @MethodSource("dropped")
    void dropout(Case c) {
        AttentionProblem problem = c.problem().withDropout(PROBABILITY);
        int length = c.queries().padded();
        Tensor state = open.longs(open.random().nextLong(), 3);
        FusedScoresRun shows = new FusedScoresRun(open, c);
        for (int i = 0; i < shows.witness.v.length; i++) {
            int key = i / (c.heads() * c.headDim()) % length;
            shows.witness.v[i] = i % c.headDim() == key ? 1 : 0;
        }
        shows.writeInputs();
        shows.tensors.rngState(state);
        shows.forward(problem);
        float[] shown = open.read(shows.tensors.output());
        FusedScoresRun run = new FusedScoresRun(open, c);
        run.witness.keep = (sequence, head, query, key) ->
                shown[((sequence * length + query) * c.heads() + head) * c.headDim() + key] == 0
                        ? 0
                        : 1 / (1 - (double) PROBABILITY);
        run.tensors.rngState(state);
        run.forward(problem);
        run.checkOutput();
        run.backward(problem);
        // cuDNN 9.19 leaves 1 / (1 - probability) out of them; layers do not use it there.
        run.sinksFactor(Provider.current() == Provider.CUDA ? 1 - PROBABILITY : 1);
        run.checkGradients();
    }

    static List<Case> dropped() {
        Case plain = Case.of(DType.FLOAT16, MaskType.NO_MASK, 2, 64, TokenRows.padded(QkvFormat.BSHD, 48, 48, 48));
        return List.of(
                plain.withBias(1, 2),
                plain.withSoftmax(SoftmaxType.LEARNABLE),
                plain.withBias(2, 1).withSoftmax(SoftmaxType.OFF_BY_ONE));
    }

    /** A replayed graph reads the bias and the sinks of its time, and writes their gradients. */
    @Test
    void replays() {
        Case c = Case.of(DType.BFLOAT16, MaskType.CAUSAL, 2, 64, TokenRows.padded(QkvFormat.BSHD, 64, 64, 64))
                .withBias(1, 2)
                .withSoftmax(SoftmaxType.LEARNABLE);
        FusedScoresRun run = new FusedScoresRun(open, c);
        AttentionProblem problem = c.problem();
        run.forward(problem);
        run.backward(problem);
        open.stream().synchronize();
        try (Graph graph = open.stream().capture(() -> {
            run.forward(problem);
            run.backward(problem);
        })) {
            double[] bias = open.normal(c.dtype(), run.witness.bias.length, 1);
            System.arraycopy(bias, 0, run.witness.bias, 0, bias.length);
            open.set(present(run.tensors.bias()), bias);
            graph.launch();
            run.checkOutput();
            run.checkGradients();
        }
    }

    /** A call that changes scores must leave nothing for plain ones, and they nothing for it. */
    @Test
    void callsInTurn() {
        TokenRows rows = TokenRows.padded(QkvFormat.BSHD, 33, 33, 33);
        Case plain = Case.of(DType.FLOAT16, MaskType.CAUSAL, 2, 64, rows);
        List<Case> turns = List.of(
                plain, plain.withBias(1, 2), plain, plain.withAlibi(), plain.withSoftmax(SoftmaxType.LEARNABLE), plain);
        for (Case c : turns) {
            FusedScoresRun run = new FusedScoresRun(open, c);
            run.forward(c.problem());
            run.checkOutput();
            run.backward(c.problem());
            run.checkGradients();
        }
    }

    @Test
    void makesNoGarbage() {
        Case c = Case.of(DType.BFLOAT16, MaskType.CAUSAL, 2, 64, TokenRows.padded(QkvFormat.BSHD, 16, 16, 16))
                .withBias(2, 2)
                .withSoftmax(SoftmaxType.LEARNABLE);
        FusedScoresRun run = new FusedScoresRun(open, c);
        AttentionProblem problem = c.problem();
        Allocation.assertNone("fused attention over changed scores", () -> {
            run.forward(problem);
            run.backward(problem);
        });
    }

    /** Without keys no score is changed: the gradients of what changes them are 0. */
    @Test
    void overNothing() {
        Case c = Case.of(DType.BFLOAT16, MaskType.PADDING, 2, 64, TokenRows.padded(QkvFormat.BSHD, 3, 3, 3))
                .withSoftmax(SoftmaxType.LEARNABLE);
        FusedScoresRun run = new FusedScoresRun(open, c);
        Tensor none = open.scope().tensor(c.dtype(), 2, 0, 2, 64);
        run.tensors.key(none).value(none).keyGradient(none).valueGradient(none).keyLengths(open.ints(0, 0, 0), 0);
        run.forward(c.problem());
        run.backward(c.problem());
        assertArrayEquals(new float[2], open.read(present(run.tensors.softmaxOffsetGradient())));
    }

    /** What a library of these versions takes is the same on every provider. */
    @Test
    void saysWhatItTakes() {
        TokenRows dense = TokenRows.padded(QkvFormat.BSHD, 512, 512, 512);
        for (MaskType mask : MaskType.values()) {
            Case c = Case.of(DType.BFLOAT16, mask, 8, 64, dense);
            boolean cornered = mask.isCausal() && mask.isBottomRight();
            assertTaken(!cornered, c.withBias(1, 8));
            assertTaken(mask.isCausal() && !cornered, c.withAlibi());
            assertTaken(true, c.withSoftmax(SoftmaxType.OFF_BY_ONE));
            assertTaken(true, c.withSoftmax(SoftmaxType.LEARNABLE));
        }
        Case packed = Case.of(DType.BFLOAT16, MaskType.PADDING_CAUSAL, 8, 64, TokenRows.packed(512, 512));
        assertTaken(true, packed.withAlibi());
        assertTaken(false, packed.withSoftmax(SoftmaxType.LEARNABLE));
        assertNotNull(FusedAttention.refusal(
                packed.problem().withBiasType(BiasType.POST_SCALE_BIAS),
                DType.BFLOAT16,
                packed.sizes().withBias(1, 8),
                open.device()));
    }

    private static void assertTaken(boolean taken, Case c) {
        String refusal = FusedAttention.refusal(c.problem(), c.dtype(), c.sizes(), open.device());
        if (taken) {
            assertNull(refusal, c.toString());
        } else {
            assertNotNull(refusal, c.toString());
        }
    }
}
