package dev.chagres.parallel;

import static dev.chagres.layer.ScoreTensors.drawn;
import static dev.chagres.parallel.ContextParallelTest.close;
import static dev.chagres.parallel.ContextParallelTest.joined;
import static dev.chagres.parallel.ContextParallelTest.sum;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossAttention;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ScoreTensors;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TokenScatter;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks that divide the heads are given slopes, biases and masks of all heads, and attend as one rank. */
@Tag("L0")
@Tag("L2")
class TensorParallelScoresTest {
    private static final int HIDDEN = 16;
    private static final int LONGEST = 13;
    private static final int[] LENGTHS = {13, 4, 7};
    private static final int[] KEY_LENGTHS = {6, 13, 5};

    /** What is done with scores. */
    private enum Scores {
        SLOPES,
        BIAS,
        SHARED_BIAS,
        PRE_SCALE,
        MASK,
        SHARED_MASK,
        /** All but the bias before the scale, a cap and sinks. */
        EVERYTHING;

        boolean slopes() {
            return this == SLOPES || this == EVERYTHING;
        }

        /** Returns how many heads the bias tells apart; 0 without one. */
        int biases(int heads) {
            return switch (this) {
                case BIAS, PRE_SCALE, EVERYTHING -> heads;
                case SHARED_BIAS -> 1;
                default -> 0;
            };
        }

        /** Returns how many heads the mask tells apart; 0 without one. */
        int masks(int heads) {
            return switch (this) {
                case MASK, EVERYTHING -> heads;
                case SHARED_MASK -> 1;
                default -> 0;
            };
        }
    }

    /** Which layer attends. */
    private enum Kind {
        SELF,
        CROSS,
        SEQUENCE_PARALLEL,
        RECOMPUTED
    }

    /** A call of one rank; {@code bias} is empty without one. */
    private record Result(
            int tensor,
            float[] y,
            float[] dx,
            float[] bias,
            List<float[]> gradients,
            List<@Nullable ParameterSplit> splits) {}

    /** What is computed. */
    private record Case(int heads, int keyHeads, Scores scores, Kind kind, DType dtype) {
        AttentionConfig config() {
            AttentionMask mask =
                    scores == Scores.SLOPES && kind != Kind.CROSS ? AttentionMask.causal() : AttentionMask.none();
            AttentionConfig config = AttentionConfig.of(heads, 8, mask).withKeyHeads(keyHeads);
            return scores == Scores.EVERYTHING ? config.withSoftcap(2).withSoftmaxType(SoftmaxType.LEARNABLE) : config;
        }
    }

    private static Layer layer(Case what, SharedInput memory, SharedInput biases, Scope scope, ModelPlan plan) {
        Initializer initializer = Initializer.normal(0.3f);
        Alibi slopes = Alibi.of(scope, what.heads);
        boolean biased = what.scores.biases(what.heads) > 0;
        if (what.kind == Kind.CROSS) {
            CrossAttention layer = new CrossAttention(
                    CrossAttentionConfig.of(HIDDEN, what.config()).withInitializer(initializer), memory, plan);
            if (what.scores.slopes()) {
                layer.alibi(slopes);
            }
            if (biased) {
                layer.bias(biases);
            }
            return layer;
        }
        MultiheadAttention layer =
                new MultiheadAttention(NormConfig.layerNorm(HIDDEN), what.config(), initializer, plan);
        if (what.scores.slopes()) {
            layer.alibi(slopes);
        }
        if (what.scores == Scores.PRE_SCALE) {
            layer.preScaleBias(biases);
        } else if (biased) {
            layer.bias(biases);
        }
        return what.kind == Kind.RECOMPUTED ? new Recomputed(layer) : layer;
    }

    private static Result run(Device device, TensorParallel tensor, ContextParallel context, Case what) {
        ModelPlan plan = new ModelPlan(tensor, context);
        Stream stream = device.stream();
        SharedInput memory = new SharedInput("memory");
        SharedInput biases = new SharedInput("biases");
        try (Scope scope = device.openScope()) {
            Layer layer = layer(what, memory, biases, scope, plan.group("attention"));
            try (Parameters parameters = Parameters.allocate(device, plan, what.dtype, 5);
                    Pass pass = Pass.training(device)) {
                Sequences sequences = Sequences.packed(scope, LENGTHS);
                Sequences keys = what.kind == Kind.CROSS ? Sequences.packed(scope, KEY_LENGTHS) : sequences;
                if (what.kind == Kind.CROSS) {
                    sequences = sequences.withKeys(keys);
                }
                if (what.scores.masks(what.heads) > 0) {
                    sequences = sequences.withScoreMask(
                            ScoreTensors.mask(scope, LENGTHS.length, what.scores.masks(what.heads), LONGEST, 60));
                }
                pass.begin(sequences);
                int apart = what.scores.biases(what.heads);
                if (apart > 0) {
                    biases.forward(
                            drawn(pass.scope(), what.dtype, "bias", LENGTHS.length, apart, LONGEST, LONGEST), pass);
                }
                if (what.kind == Kind.CROSS) {
                    memory.forward(context.own(drawn(scope, what.dtype, "memory", keys.tokens(), HIDDEN), scope), pass);
                }
                Tensor x = context.own(drawn(scope, what.dtype, "x", sequences.tokens(), HIDDEN), scope);
                boolean shared = tensor.isSequenceParallel();
                TokenScatter scatter = new TokenScatter(plan);
                TokenGather gather = new TokenGather(plan);
                if (shared) {
                    x = scatter.forward(x, pass);
                }
                Tensor output = layer.forward(x, pass);
                float[] y = (shared ? gather.forward(output, pass) : output).toFloats(stream);
                assertEquals(
                        tensor.isSplit() && apart > 0,
                        layer.explain(x, pass).contains("ncclAllReduce sums the bias's gradient over the "),
                        layer.explain(x, pass));
                Tensor dy = context.own(drawn(scope, what.dtype, "dy", sequences.tokens(), HIDDEN), scope);
                Tensor down = layer.backward(shared ? gather.backward(dy, pass) : dy, pass);
                float[] dx = (shared ? scatter.backward(down, pass) : down).toFloats(stream);
                if (what.kind == Kind.CROSS) {
                    memory.backward(pass);
                }
                float[] bias = apart > 0 ? biases.backward(pass).toFloats(stream) : new float[0];
                List<float[]> gradients = new ArrayList<>();
                List<@Nullable ParameterSplit> splits = new ArrayList<>();
                for (Parameter parameter : parameters.all()) {
                    gradients.add(parameter.gradient().toFloats(stream));
                    splits.add(parameter.split());
                }
                return new Result(tensor.rank(), y, dx, bias, gradients, splits);
            }
        }
    }

    private static void compare(int tensor, int context, Case what) {
        DevicesNeeded.assume(tensor * context);
        double tolerance = what.dtype == DType.BFLOAT16 ? 4e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 1e-5;
        Result whole;
        try (Device device = Device.open()) {
            whole = run(device, TensorParallel.none(), ContextParallel.none(), what);
        }
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.CONTEXT, context).with(MeshDimension.TENSOR, tensor);
        List<Result> parts = Ranks.local(tensor * context).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                TensorParallel heads = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
                ContextParallel tokens =
                        context == 1 ? ContextParallel.none() : ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
                return run(
                        rank.device(),
                        what.kind == Kind.SEQUENCE_PARALLEL ? heads.withSequenceParallel() : heads,
                        tokens,
                        what);
            }
        });
        for (int i = 0; i < tensor; i++) {
            int coordinate = i;
            compare(
                    whole,
                    parts.stream().filter(part -> part.tensor == coordinate).toList(),
                    what,
                    tolerance);
        }
    }

    /** Compares with the results of ranks that have the same heads between them, each its own tokens. */
    private static void compare(Result whole, List<Result> parts, Case what, double tolerance) {
        String who = " of tensor-parallel rank " + parts.getFirst().tensor;
        close(whole.y, joined(parts.stream().map(Result::y).toList()), tolerance, "y" + who);
        close(whole.dx, joined(parts.stream().map(Result::dx).toList()), tolerance, "dx" + who);
        close(whole.bias, sum(parts.stream().map(Result::bias).toList()), tolerance, "gradient of the bias" + who);
        for (int i = 0; i < whole.gradients.size(); i++) {
            int parameter = i;
            float[] expected = whole.gradients.get(i);
            ParameterSplit split = parts.getFirst().splits.get(i);
            if (split == null && what.kind == Kind.SEQUENCE_PARALLEL) {
                continue; // of this rank's tokens alone
            }
            if (split != null) {
                float[] all = expected;
                expected = new float[all.length / split.ranks()];
                for (int e = 0; e < expected.length; e++) {
                    expected[e] = all[Math.toIntExact(split.element(e))];
                }
            }
            float[] actual = sum(
                    parts.stream().map(part -> part.gradients.get(parameter)).toList());
            close(expected, actual, tolerance, "gradient " + i + who);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, 1, 4, 4, SLOPES, SELF",
        "4, 1, 12, 4, SLOPES, SELF",
        "2, 1, 4, 2, BIAS, SELF",
        "4, 1, 4, 4, BIAS, RECOMPUTED",
        "2, 1, 4, 4, SHARED_BIAS, SELF",
        "4, 1, 8, 4, PRE_SCALE, SELF",
        "2, 1, 4, 2, MASK, SELF",
        "4, 1, 4, 4, SHARED_MASK, SELF",
        "2, 1, 6, 2, EVERYTHING, SELF",
        "4, 1, 8, 4, EVERYTHING, SELF",
        "2, 1, 4, 2, EVERYTHING, CROSS",
        "4, 1, 4, 4, MASK, CROSS",
        "2, 1, 4, 2, EVERYTHING, SEQUENCE_PARALLEL",
        "2, 2, 8, 4, EVERYTHING, SELF",
        "2, 2, 4, 4, SLOPES, SELF",
        "2, 2, 8, 4, PRE_SCALE, SELF",
        "2, 2, 4, 4, SHARED_BIAS, RECOMPUTED",
        "2, 2, 8, 4, EVERYTHING, CROSS",
        "4, 2, 8, 8, EVERYTHING, SELF"
    })
    void ranksAttendAsOne(int tensor, int context, int heads, int keyHeads, Scores scores, Kind kind) {
        compare(tensor, context, new Case(heads, keyHeads, scores, kind, DType.FLOAT32));
    }

    @ParameterizedTest
    @CsvSource({"2, 1, 4, 2, SLOPES", "2, 1, 4, 2, BIAS", "2, 2, 8, 4, EVERYTHING"})
    void ranksAttendIn16Bits(int tensor, int context, int heads, int keyHeads, Scores scores) {
        compare(tensor, context, new Case(heads, keyHeads, scores, Kind.SELF, DType.BFLOAT16));
    }

    private static void assertRefused(String text, BiConsumer<MultiheadAttention, Pass> call) {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
                    MultiheadAttention layer = new MultiheadAttention(
                            NormConfig.layerNorm(HIDDEN),
                            AttentionConfig.of(4, 8, AttentionMask.none()),
                            Initializer.zeros(),
                            plan.group("attention"));
                    try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 5);
                            Pass pass = Pass.training(rank.device())) {
                        assertTrue(parameters.all().size() > 2);
                        pass.begin();
                        pass.sequences(Sequences.packed(pass.scope(), 5, 8));
                        call.accept(layer, pass);
                    }
                }));
        assertInstanceOf(IllegalArgumentException.class, failure.getCause());
        assertEquals(text, failure.getCause().getMessage());
    }

    private static final String MEND = "; pass it for all heads, as on a single rank";
    private static final String OF_ALL = " of all 4 heads, of which this rank attends with 2, got ";

    @Test
    void whatIsOfOtherHeadsIsRefused() {
        for (int heads : IntStream.of(2, 3, 8).toArray()) {
            assertRefused(
                    "alibi: expected slopes" + OF_ALL + heads + MEND,
                    (layer, pass) -> layer.alibi(Alibi.of(pass.scope(), heads)));
            assertRefused(
                    "bias: expected FLOAT32[1 or 2, 1 or 4, 8 or more, 8 or more]" + OF_ALL + "FLOAT32[1, " + heads
                            + ", 8, 8]" + MEND,
                    (layer, pass) -> {
                        SharedInput biases = new SharedInput("biases");
                        layer.bias(biases);
                        biases.forward(drawn(pass.scope(), DType.FLOAT32, "bias", 1, heads, 8, 8), pass);
                        layer.forward(drawn(pass.scope(), DType.FLOAT32, "x", 13, HIDDEN), pass);
                    });
            assertRefused(
                    "mask: expected BYTE[1 or 2, 1 or 4, 8 or more, 8 or more]" + OF_ALL + "BYTE[2, " + heads
                            + ", 13, 13]" + MEND,
                    (layer, pass) -> {
                        pass.sequences(
                                pass.sequences().withScoreMask(ScoreTensors.mask(pass.scope(), 2, heads, LONGEST, 60)));
                        layer.forward(drawn(pass.scope(), DType.FLOAT32, "x", 13, HIDDEN), pass);
                    });
        }
        assertRefused(
                "bias: expected FLOAT32[1 or 2, 1 or 4, 8 or more, 8 or more]" + OF_ALL + "FLOAT32[1, 4, 8, 7]" + MEND,
                (layer, pass) -> {
                    SharedInput biases = new SharedInput("biases");
                    layer.preScaleBias(biases);
                    biases.forward(drawn(pass.scope(), DType.FLOAT32, "bias", 1, 4, 8, 7), pass);
                    layer.forward(drawn(pass.scope(), DType.FLOAT32, "x", 13, HIDDEN), pass);
                });
    }
}
