package dev.chagres.layer;

import static dev.chagres.layer.ScoreTensors.drawn;
import static dev.chagres.parallel.ContextParallelTest.close;
import static dev.chagres.parallel.ContextParallelTest.joined;
import static dev.chagres.parallel.ContextParallelTest.sum;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.PackedChunk;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Attention of ranks that have parts of the tokens, over drawn sequences in every layout, beside one rank's. */
@Tag("L0")
@Tag("L2")
class ContextParallelAttentionTest {
    private static final int HIDDEN = 16;
    private static final int LONGEST = 40;
    private static final int ROUNDS = 60;
    private static final int CALLS = 200;
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();

    /** How tokens lie. */
    private enum Layout {
        PACKED,
        GAPS,
        BSHD,
        SBHD,
        PADDED
    }

    /** What is done with scores. */
    private enum Scores {
        PLAIN,
        CAUSAL,
        BOTTOM_RIGHT,
        WINDOW,
        /** A window that sees no key behind the query's own. */
        CAUSAL_WINDOW,
        /** A window without an end to the right. */
        LEFT_OF_ALL,
        NORMED_HEADS,
        /** Linear biases, a bias and a mask of each head, sinks, a cap. */
        EVERYTHING,
        /** A bias and a mask that all heads share. */
        SHARED,
        /** What cuDNN's kernels take of padded sequences in 16 bits: a bias of each head, and sinks. */
        FUSED,
        /** Linear biases with the usual slopes: of all heads cuDNN's kernels take them, of a rank's not. */
        LINEAR;

        AttentionConfig config(int heads, int keyHeads) {
            AttentionMask mask = switch (this) {
                case CAUSAL, EVERYTHING, LINEAR -> AttentionMask.causal();
                case BOTTOM_RIGHT -> AttentionMask.causalBottomRight();
                case WINDOW -> AttentionMask.none().withWindow(5, 3);
                case CAUSAL_WINDOW -> AttentionMask.none().withWindow(6, 0);
                case LEFT_OF_ALL -> AttentionMask.none().withWindow(4, -1);
                default -> AttentionMask.none();
            };
            AttentionConfig config = AttentionConfig.of(heads, 8, mask).withKeyHeads(keyHeads);
            return switch (this) {
                case NORMED_HEADS -> config.withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM));
                case EVERYTHING -> config.withSoftcap(2).withSoftmaxType(SoftmaxType.LEARNABLE);
                case FUSED -> config.withSoftmaxType(SoftmaxType.LEARNABLE);
                default -> config;
            };
        }

        /** Returns how many heads the bias and the mask of scores tell apart; 0 without them. */
        int apart(int heads) {
            return switch (this) {
                case EVERYTHING, FUSED -> heads;
                case SHARED -> 1;
                default -> 0;
            };
        }
    }

    private record Result(float[] y, float[] dx, List<float[]> gradients) {}

    private static int[] lengths(long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        int[] lengths = random.ints(1 + random.nextInt(5), 0, LONGEST + 1).toArray();
        lengths[0] = 9 + random.nextInt(LONGEST - 9);
        return lengths;
    }

    private static Sequences sequences(Layout layout, long seed, Scope scope) {
        SplittableRandom random = new SplittableRandom(seed);
        int[] lengths = lengths(seed);
        int batch = lengths.length;
        int length = Arrays.stream(lengths).max().orElseThrow();
        return switch (layout) {
            case PACKED -> Sequences.packed(scope, lengths);
            case GAPS -> {
                int[] padded = new int[batch];
                for (int i = 0; i < batch; i++) {
                    padded[i] = Math.min(LONGEST, lengths[i] + random.nextInt(4));
                }
                yield Sequences.packed(scope, lengths, padded);
            }
            case BSHD -> Sequences.dense(scope, QkvFormat.BSHD, batch, length);
            case SBHD -> Sequences.dense(scope, QkvFormat.SBHD, batch, length);
            case PADDED -> Sequences.padded(QkvFormat.BSHD, CuSeqlens.ofLengths(scope, lengths), length);
        };
    }

    private static Result run(
            Device device,
            ContextParallel ranks,
            AttentionConfig config,
            Scores scores,
            Layout layout,
            DType dtype,
            long seed) {
        ModelPlan plan = new ModelPlan(ranks);
        MultiheadAttention layer = new MultiheadAttention(
                NormConfig.layerNorm(HIDDEN), config, Initializer.normal(0.3f), plan.group("attention"));
        Stream stream = device.stream();
        try (Scope scope = device.openScope();
                Parameters parameters = Parameters.allocate(device, plan, dtype, 5);
                Pass pass = Pass.training(device)) {
            layer.rotate(RotaryEmbedding.of(scope, LONGEST, 8));
            Sequences sequences = sequences(layout, seed, scope);
            long tokens = sequences.tokens();
            if (ranks.gathersKeys() && seed % 2 == 0) { // else the layer cuts them up itself
                long begin = ranks.begin(tokens, ranks.rank());
                sequences = PackedChunk.of(scope, begin, begin + ranks.count(tokens), lengths(seed));
            }
            SharedInput biases = new SharedInput("biases");
            int apart = scores.apart(config.heads());
            if (apart > 0) {
                layer.bias(biases);
            }
            if (apart > 0 && scores != Scores.FUSED) {
                sequences = sequences.withScoreMask(ScoreTensors.mask(scope, sequences.batch(), apart, LONGEST, 90));
            }
            if (scores == Scores.EVERYTHING || scores == Scores.LINEAR) {
                layer.alibi(Alibi.of(scope, config.heads()));
            }
            if (scores == Scores.EVERYTHING || scores == Scores.FUSED) {
                float[] sinks = new float[config.heads()];
                for (int i = 0; i < sinks.length; i++) {
                    sinks[i] = 0.1f * i;
                }
                sinks(layer).weight().set(stream, sinks);
                parameters.changed();
            }
            pass.begin(sequences);
            if (apart > 0) {
                long longest = scores == Scores.FUSED ? sequences.length() : LONGEST;
                biases.forward(drawn(pass.scope(), dtype, "bias", sequences.batch(), apart, longest, longest), pass);
            }
            Tensor x = ranks.own(drawn(scope, dtype, "x", tokens, HIDDEN), scope);
            Tensor y = layer.forward(x, pass);
            float[] output = y.toFloats(stream);
            String kernels = layer.explain(x, pass);
            assertEquals(ranks.dividesHeads(), kernels.contains("by ncclSend and ncclRecv"), kernels);
            assertEquals(ranks.gathersKeys(), kernels.contains("by ncclAllGather"), kernels);
            boolean fused = scores == Scores.FUSED || (scores == Scores.LINEAR && !ranks.isSplit());
            assertTrue(
                    kernels.contains("te_fused_attn_fwd_v2") || !fused || Provider.current() == Provider.CUDA, kernels);
            Tensor dx = layer.backward(ranks.own(drawn(scope, dtype, "dy", tokens, HIDDEN), scope), pass);
            List<float[]> gradients = new ArrayList<>();
            if (apart > 0) {
                gradients.add(biases.backward(pass).toFloats(stream));
            }
            for (Parameter parameter : parameters.all()) {
                gradients.add(parameter.gradient().toFloats(stream));
            }
            Result result = new Result(output, dx.toFloats(stream), gradients);
            if (apart == 0) {
                try (Pass evaluation = Pass.evaluation(device)) {
                    evaluation.begin(sequences);
                    assertArrayEquals(output, layer.forward(x, evaluation).toFloats(stream));
                }
            }
            return result;
        }
    }

    private static Parameter sinks(MultiheadAttention layer) {
        Parameter sinks = layer.sinks();
        assertTrue(sinks != null);
        return sinks;
    }

    @ParameterizedTest
    @CsvSource({
        "2, 24, 24, PLAIN, PACKED, FLOAT32",
        "3, 24, 24, CAUSAL, PACKED, FLOAT32",
        "8, 24, 24, PLAIN, PACKED, FLOAT32",
        "4, 24, 8, CAUSAL, PACKED, FLOAT32",
        "4, 24, 4, BOTTOM_RIGHT, PACKED, FLOAT32",
        "2, 4, 4, WINDOW, PACKED, FLOAT32",
        "3, 6, 3, NORMED_HEADS, PACKED, FLOAT32",
        "2, 4, 4, EVERYTHING, PACKED, FLOAT32",
        "3, 6, 3, EVERYTHING, PADDED, FLOAT32",
        "2, 4, 2, SHARED, PACKED, FLOAT32",
        "4, 4, 4, SHARED, BSHD, FLOAT32",
        "3, 6, 6, PLAIN, GAPS, FLOAT32",
        "2, 6, 2, CAUSAL, GAPS, FLOAT32",
        "3, 6, 6, PLAIN, BSHD, FLOAT32",
        "2, 6, 2, CAUSAL, SBHD, FLOAT32",
        "4, 8, 8, PLAIN, PADDED, FLOAT32",
        "5, 10, 5, PLAIN, PACKED, BFLOAT16",
        "7, 7, 7, CAUSAL, PACKED, BFLOAT16",
        "2, 4, 4, PLAIN, BSHD, BFLOAT16",
        "2, 4, 2, FUSED, PADDED, BFLOAT16",
        "3, 6, 6, FUSED, SBHD, BFLOAT16",
        "2, 4, 4, LINEAR, PACKED, BFLOAT16",
        "3, 6, 3, LINEAR, PADDED, BFLOAT16"
    })
    void ranksAttendAsOne(int ranks, int heads, int keyHeads, Scores scores, Layout layout, DType dtype) {
        compare(ranks, scores.config(heads, keyHeads), scores, layout, dtype, UnaryOperator.identity());
    }

    /** Over gathered keys; the ranks need not divide the heads. */
    @ParameterizedTest
    @CsvSource({
        "2, 4, 4, PLAIN, FLOAT32",
        "3, 4, 1, PLAIN, FLOAT32",
        "5, 2, 2, NORMED_HEADS, FLOAT32",
        "4, 6, 3, NORMED_HEADS, FLOAT32",
        "8, 4, 2, PLAIN, BFLOAT16",
        "3, 4, 4, CAUSAL, FLOAT32",
        "8, 4, 2, CAUSAL, FLOAT32",
        "4, 2, 1, BOTTOM_RIGHT, FLOAT32",
        "5, 4, 2, WINDOW, FLOAT32",
        "4, 4, 4, CAUSAL_WINDOW, FLOAT32",
        "3, 2, 2, LEFT_OF_ALL, FLOAT32",
        "6, 4, 4, CAUSAL, BFLOAT16",
        "4, 4, 2, CAUSAL_WINDOW, BFLOAT16",
        "4, 4, 2, WINDOW, BFLOAT16"
    })
    void ranksAttendOverGatheredKeys(int ranks, int heads, int keyHeads, Scores scores, DType dtype) {
        AttentionConfig config = scores.config(heads, keyHeads).withSoftmaxType(SoftmaxType.LEARNABLE);
        compare(ranks, config, scores, Layout.PACKED, dtype, ContextParallel::withAllGather);
    }

    private static void compare(
            int ranks,
            AttentionConfig config,
            Scores scores,
            Layout layout,
            DType dtype,
            UnaryOperator<ContextParallel> change) {
        DevicesNeeded.assume(ranks);
        double tolerance = dtype == DType.BFLOAT16 ? 4e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 2e-5;
        for (long seed = 11; seed < 15; seed++) {
            long drawn = seed;
            Result whole;
            try (Device device = Device.open()) {
                whole = run(device, ContextParallel.none(), config, scores, layout, dtype, drawn);
            }
            List<Result> parts = Ranks.local(ranks)
                    .run(rank -> run(
                            rank.device(),
                            change.apply(ContextParallel.of(rank.communicator())),
                            config,
                            scores,
                            layout,
                            dtype,
                            drawn));
            String what = " of seed " + seed;
            close(whole.y, joined(parts.stream().map(Result::y).toList()), tolerance, "y" + what);
            close(whole.dx, joined(parts.stream().map(Result::dx).toList()), tolerance, "dx" + what);
            for (int i = 0; i < whole.gradients.size(); i++) {
                int parameter = i;
                float[] sum = sum(parts.stream()
                        .map(part -> part.gradients.get(parameter))
                        .toList());
                close(whole.gradients.get(i), sum, tolerance, "gradient " + i + what);
            }
        }
    }

    @Test
    void exchangesMakeNoGarbage() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ContextParallel ranks = ContextParallel.of(rank.communicator());
            HeadAllToAll even = HeadAllToAll.of(new ModelPlan(ranks), 4, 1, 1, 1);
            HeadAllToAll uneven = HeadAllToAll.of(new ModelPlan(ranks), 2, 2, 1, 1);
            KvAllGather keys = KvAllGather.of(Scores.PLAIN.config(2, 2), new ModelPlan(ranks.withAllGather()));
            try (Scope scope = rank.device().openScope();
                    Pass pass = Pass.training(rank.device())) {
                Tensor x = ranks.own(drawn(scope, DType.FLOAT32, "x", 33, 24), scope);
                Tensor grouped = ranks.own(drawn(scope, DType.FLOAT32, "grouped", 33, 16), scope);
                Tensor key = scope.view(grouped, 0, grouped.size(0), 2, 8);
                float[] before = x.toFloats(rank.device().stream());
                Runnable there = () -> {
                    pass.begin();
                    keys.sum(keys.gather(key, 33, pass.scope(), pass), pass.scope(), pass);
                    Tensor heads = even.toHeads(x, 33, pass.scope(), pass);
                    even.toTokens(heads, pass.scope(), pass);
                    uneven.toTokens(uneven.toHeads(grouped, 33, pass.scope(), pass), pass.scope(), pass);
                };
                pass.begin();
                Tensor back = even.toTokens(even.toHeads(x, 33, pass.scope(), pass), pass.scope(), pass);
                close(before, back.toFloats(rank.device().stream()), 0, "there and back");
                long least = Long.MAX_VALUE;
                for (int round = 0; round < ROUNDS; round++) { // as many on each rank
                    long allocated = THREADS.getCurrentThreadAllocatedBytes();
                    for (int i = 0; i < CALLS; i++) {
                        there.run();
                    }
                    least = Math.min(least, THREADS.getCurrentThreadAllocatedBytes() - allocated);
                }
                assertTrue(least < 8L * CALLS, least + " bytes in " + CALLS + " calls");
            }
        });
    }
}
