package dev.chagres.parallel;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.SmallModel;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks whose keys and values travel round compute what one rank computes of all tokens. */
@Tag("L0")
@Tag("L2")
class RingAttentionTest {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final int HIDDEN = 48;
    private static final int ROUNDS = 6;
    private static final int CALLS = 40;

    /** How ranks split tokens. */
    private enum Ring {
        STRETCHES,
        BALANCED;

        private ContextParallel of(Communicator ranks) {
            ContextParallel tokens = ContextParallel.of(ranks);
            return this == BALANCED ? tokens.withBalancedRing() : tokens.withRing();
        }
    }

    /** Attention of every kind that rings take. */
    private enum Kind {
        PLAIN(AttentionConfig.of(6, 8, AttentionMask.none())),
        CAUSAL(AttentionConfig.of(6, 8, AttentionMask.causal())),
        GROUPED(AttentionConfig.of(6, 8, AttentionMask.causal()).withKeyHeads(2)),
        NORMED(AttentionConfig.of(3, 16, AttentionMask.none()).withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM))),
        CAPPED(AttentionConfig.of(3, 40, AttentionMask.causal()).withSoftcap(3)),
        WIDE(AttentionConfig.of(2, 64, AttentionMask.causal()).withKeyHeads(1)),
        WIDE_OF_ALL(AttentionConfig.of(2, 64, AttentionMask.none()));

        private final AttentionConfig attention;

        Kind(AttentionConfig attention) {
            this.attention = attention;
        }
    }

    /** What one micro-batch gave: output, gradient of the input, gradients of parameters. */
    private record Result(float[] y, float[] dx, List<float[]> gradients, List<long[]> stretches) {}

    private static Result run(Device device, Kind kind, DType dtype, ContextParallel ranks, int[] lengths) {
        ModelPlan plan = new ModelPlan(ranks);
        TransformerLayerConfig config = TransformerLayerConfig.encoder(HIDDEN, kind.attention)
                .withMlp(MlpConfig.gelu(HIDDEN).withInner(16));
        TransformerLayer layer = new TransformerLayer(config, plan.group("layer"));
        int tokens = Arrays.stream(lengths).sum();
        try (Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, dtype, 3);
                Pass pass = Pass.training(device)) {
            layer.rotate(RotaryEmbedding.of(scope, Arrays.stream(lengths).max().orElse(1), kind.attention.headDim()));
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            Tensor x = drawn(scope, dtype, tokens, 1);
            Tensor dy = drawn(scope, dtype, tokens, 2);
            Tensor own = ranks.own(x, scope);
            dev.chagres.internal.Inside.requireGradient(own, true);
            Tensor y = layer.forward(own, pass);
            float[] output = y.toFloats(pass.stream());
            Tensor dx = layer.backward(ranks.own(dy, scope), pass);
            List<float[]> gradients = new ArrayList<>();
            parameters.all().forEach(p -> gradients.add(p.gradient().toFloats(pass.stream())));
            List<long[]> stretches = new ArrayList<>();
            for (int i = 0; i < ranks.chunks(); i++) {
                int chunk = ranks.chunk(ranks.rank(), i);
                stretches.add(new long[] {ranks.chunkBegin(tokens, chunk), ranks.chunkBegin(tokens, chunk + 1)});
            }
            return new Result(output, dx.toFloats(pass.stream()), gradients, stretches);
        }
    }

    private static Tensor drawn(Scope scope, DType dtype, int tokens, int seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[tokens * HIDDEN];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor x = scope.tensor(dtype, tokens, HIDDEN);
        x.set(scope.stream(), values);
        return x;
    }

    /** Lengths that leave sequences within chunks, over some and over all of them. */
    private static int[] lengths(SplittableRandom random, int least) {
        int[] lengths = new int[1 + random.nextInt(6)];
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = random.nextInt(4) == 0 ? random.nextInt(3) : 1 + random.nextInt(90);
        }
        lengths[random.nextInt(lengths.length)] += least;
        return lengths;
    }

    /** Puts rows of ranks, in the order in which each has them, where they are among all. */
    private static float[] joined(List<Result> parts, boolean outputs, int tokens) {
        float[] all = new float[tokens * HIDDEN];
        Arrays.fill(all, Float.NaN);
        for (Result part : parts) {
            float[] own = outputs ? part.y : part.dx;
            int copied = 0;
            for (long[] stretch : part.stretches) {
                int count = (int) (stretch[1] - stretch[0]) * HIDDEN;
                System.arraycopy(own, copied, all, (int) stretch[0] * HIDDEN, count);
                copied += count;
            }
            assertEquals(own.length, copied);
        }
        return all;
    }

    private static void compare(Kind kind, DType dtype, Ring ring, int ranks, int[] lengths) {
        int tokens = Arrays.stream(lengths).sum();
        Result whole;
        try (Device device = Device.open()) {
            whole = run(device, kind, dtype, ContextParallel.none(), lengths);
        }
        List<Result> parts =
                Ranks.local(ranks).run(rank -> run(rank.device(), kind, dtype, ring.of(rank.communicator()), lengths));
        double tolerance = dtype == DType.BFLOAT16 ? 4e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 2e-5;
        String what = " of " + Arrays.toString(lengths);
        ContextParallelTest.close(whole.y, joined(parts, true, tokens), tolerance, "y" + what);
        ContextParallelTest.close(whole.dx, joined(parts, false, tokens), tolerance, "dx" + what);
        for (int i = 0; i < whole.gradients.size(); i++) {
            int parameter = i;
            float[] sum = ContextParallelTest.sum(
                    parts.stream().map(part -> part.gradients.get(parameter)).toList());
            ContextParallelTest.close(whole.gradients.get(i), sum, tolerance, "gradient " + i + what);
        }
    }

    @ParameterizedTest
    @EnumSource
    void outputsAndGradientsAreThoseOfAllTokens(Kind kind) {
        DevicesNeeded.assume(2);
        SplittableRandom random = new SplittableRandom(OpenDevice.seed() + kind.ordinal());
        int devices = Math.min(Device.count(), 5);
        for (Ring ring : Ring.values()) {
            for (int ranks = 2; ranks <= devices; ranks++) {
                compare(kind, DType.FLOAT32, ring, ranks, lengths(random, 2 * ranks));
            }
            compare(kind, DType.BFLOAT16, ring, 2, lengths(random, 64));
            compare(kind, DType.BFLOAT16, ring, devices, lengths(random, 64));
        }
    }

    /** One sequence of all tokens, one of each token, and sequences that end where chunks do. */
    @ParameterizedTest
    @EnumSource
    void chunksAndSequencesThatEndTogether(Ring ring) {
        DevicesNeeded.assume(3);
        int[] ones = new int[12];
        Arrays.fill(ones, 1);
        for (int[] lengths : new int[][] {{192}, ones, {32, 32, 32, 32, 32, 32}, {0, 96, 0, 0, 96, 0}, {6}}) {
            compare(Kind.CAUSAL, DType.FLOAT32, ring, 3, lengths);
            compare(Kind.PLAIN, DType.FLOAT32, ring, 3, lengths);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "STRETCHES, NONE, 3, 4, FROZEN_BOTTOM, DATA_PARALLEL",
        "STRETCHES, CAUSAL, 3, 2, RECOMPUTED, DATA_PARALLEL",
        "BALANCED, CAUSAL, 3, 2, EIGHTS, ZERO_THREE"
    })
    void ranksTrainAsOne(
            Ring ring, AttentionMask.Kind mask, int ranks, int microBatches, Variant variant, String summing) {
        DevicesNeeded.assume(ranks);
        AttentionConfig attention = AttentionConfig.of(
                        3, 16, mask == AttentionMask.Kind.CAUSAL ? AttentionMask.causal() : AttentionMask.none())
                .withDropout(Dropout.of(0.1f));
        TransformerLayerConfig layer = TransformerLayerConfig.encoder(SmallModel.HIDDEN, attention)
                .withMlp(MlpConfig.gelu(SmallModel.HIDDEN).withInner(96))
                .withHiddenDropout(Dropout.of(0.1f))
                .withDropPath(Dropout.of(0.2f));
        RankedRun expected = RankedRun.ofOne(microBatches, DType.FLOAT32, variant, layer);
        expected.assertSameSteps(Ranks.local(ranks).run(rank -> {
            ModelPlan plan = new ModelPlan(ring.of(rank.communicator()));
            Rank only = new Rank(0, 1, rank.device(), rank.communicator());
            RankedRun.Sharing sharing = (declared, dtype, given) -> summing.equals("ZERO_THREE")
                    ? FullySharded.allocate(declared, dtype, 7, ZeroStage.THREE, rank.communicator())
                    : DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, 7), rank.communicator());
            return RankedRun.of(only, sharing, microBatches, DType.FLOAT32, variant, plan, layer);
        }));
    }

    @Test
    void stepsMakeNoGarbage() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ContextParallel ranks = ContextParallel.of(rank.communicator()).withBalancedRing();
            ModelPlan plan = new ModelPlan(ranks);
            TransformerLayer layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(HIDDEN, Kind.CAUSAL.attention), plan.group("layer"));
            try (Scope scope = rank.device().openScope();
                    Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 3);
                    Pass pass = Pass.training(rank.device());
                    Pass evaluation = Pass.evaluation(rank.device())) {
                Sequences sequences = Sequences.packed(scope, 30, 2, 40);
                Tensor x = ranks.own(drawn(scope, DType.FLOAT32, 72, 1), scope);
                Runnable step = () -> {
                    pass.begin(sequences);
                    layer.backward(layer.forward(x, pass), pass);
                    parameters.forgetGradients();
                    evaluation.begin(sequences);
                    layer.forward(x, evaluation);
                };
                long least = Long.MAX_VALUE;
                long held = 0;
                for (int round = 0; round < ROUNDS; round++) { // as many on each rank
                    long allocated = THREADS.getCurrentThreadAllocatedBytes();
                    for (int i = 0; i < CALLS; i++) {
                        step.run();
                    }
                    least = Math.min(least, THREADS.getCurrentThreadAllocatedBytes() - allocated);
                    held = round == 0 ? rank.device().peakHeldBytes() : held;
                }
                assertTrue(least < 16L * CALLS, least + " bytes in " + CALLS + " calls");
                assertEquals(held, rank.device().peakHeldBytes(), "device memory");
                String text = layer.explain(x, evaluation);
                assertTrue(text.contains("ops_attention_merge"), text);
            }
        });
    }

    private static void assertRefused(String message, AttentionConfig attention) {
        Ranks.local(2).each(rank -> {
            ModelPlan plan =
                    new ModelPlan(ContextParallel.of(rank.communicator()).withBalancedRing());
            TransformerLayerConfig config = TransformerLayerConfig.encoder(HIDDEN, attention);
            assertThrown(
                    IllegalArgumentException.class, message, () -> new TransformerLayer(config, plan.group("layer")));
        });
    }

    @Test
    void refusals() {
        DevicesNeeded.assume(2);
        AttentionConfig plain = Kind.PLAIN.attention;
        String heads = "; ContextParallel.of, which exchanges heads, ";
        AttentionMask window = AttentionMask.causal().withWindow(4, 0);
        assertRefused(
                "mask: layer.attention expected none or causal where 2 context-parallel ranks form a ring, got "
                        + window + heads + "allows every mask",
                plain.withMask(window));
        assertRefused(
                "softmaxType: layer.attention expected VANILLA where 2 context-parallel ranks form a ring, for each"
                        + " block would add the softmax's extra term, got OFF_BY_ONE"
                        + heads + "allows it",
                plain.withSoftmaxType(SoftmaxType.OFF_BY_ONE));
        Ranks.local(2).each(rank -> {
            ContextParallel ranks = ContextParallel.of(rank.communicator()).withBalancedRing();
            assertEquals("context-parallel rank " + rank.index() + " of 2, passing keys on", ranks.toString());
            assertThrown(
                    IllegalStateException.class,
                    "begin: expected ranks that have one stretch each, got " + ranks + "; ask chunkBegin",
                    () -> ranks.begin(64, 1));
            assertThrown(
                    IllegalArgumentException.class,
                    "tokens: expected at least 4, one of each of the 4 stretches of 2 context-parallel ranks, got 3; make"
                            + " the micro-batch larger",
                    () -> ranks.count(3));
            assertThrown(
                    IllegalArgumentException.class, "chunk: expected 0 to 4, got 5", () -> ranks.chunkBegin(64, 5));
            assertThrown(IllegalArgumentException.class, "rank: expected 0 to 1, got 2", () -> ranks.count(100, 2));
            assertThrown(IllegalArgumentException.class, "rank: expected 0 to 1, got -1", () -> ranks.chunk(-1, 0));
            assertThrown(IllegalArgumentException.class, "index: expected 0 to 1, got 5", () -> ranks.chunk(1, 5));
            assertEquals(100, ranks.count(100, 0) + ranks.count(100, 1));
        });
    }

    @Test
    void stepsThatAreCaptured() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan =
                    new ModelPlan(ContextParallel.of(rank.communicator()).withRing());
            TransformerLayer layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(HIDDEN, Kind.PLAIN.attention), plan.group("layer"));
            try (Scope scope = rank.device().openScope();
                    Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 3);
                    Pass pass = Pass.evaluation(parameters.scope().stream())) {
                Tensor x = drawn(scope, DType.FLOAT32, 16, 1);
                Sequences sequences = Sequences.packed(scope, 20, 12);
                pass.begin(sequences);
                layer.forward(x, pass);
                pass.begin(sequences);
                assertThrown(
                        CaptureException.class,
                        "ring attention: expected a stream that does not capture, for each rank copies offsets of its part"
                                + " of the sequences from the host, got " + pass.stream()
                                + "; enqueue steps with ring attention one by one",
                        () -> pass.stream().capture(() -> layer.forward(x, pass)));
            }
        });
    }

    @Test
    void sequencesThatAreNotPacked() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan =
                    new ModelPlan(ContextParallel.of(rank.communicator()).withRing());
            TransformerLayer layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(HIDDEN, Kind.PLAIN.attention), plan.group("layer"));
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 3);
                    Pass pass = Pass.training(parameters.scope().stream())) {
                pass.begin();
                Sequences dense = Sequences.dense(pass.scope(), QkvFormat.BSHD, 2, 32);
                pass.sequences(dense);
                Tensor x = drawn(pass.scope(), DType.FLOAT32, 32, 1);
                assertThrown(
                        IllegalArgumentException.class,
                        "sequences: expected packed ones without gaps where ranks form a ring, got " + dense
                                + "; ContextParallel.of, which exchanges heads, allows every layout",
                        () -> layer.forward(x, pass));
            }
        });
    }
}
