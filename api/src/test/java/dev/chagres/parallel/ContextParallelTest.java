package dev.chagres.parallel;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.EveryLayer;
import dev.chagres.layer.EveryLayerCase;
import dev.chagres.layer.LayerKind;
import dev.chagres.layer.LayerKinds;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.SmallModel;
import dev.chagres.sharding.ZeroStage;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Context-parallel ranks compute what one rank computes of all tokens. */
@Tag("L0")
@Tag("L2")
public class ContextParallelTest {
    private static final AttentionConfig MANY_HEADS = AttentionConfig.of(24, 8, AttentionMask.none());
    private static final AttentionConfig DROPPED_WEIGHTS = MANY_HEADS.withDropout(Dropout.of(0.1f));
    private static final TransformerLayerConfig LAYER = TransformerLayerConfig.encoder(SmallModel.HIDDEN, MANY_HEADS)
            .withMlp(MlpConfig.gelu(SmallModel.HIDDEN).withInner(96));
    /** What is refused: one key head for two ranks. */
    private static final Set<String> REFUSED = Set.of("multi-query transformer");

    static List<EveryLayerCase> layers() {
        List<EveryLayerCase> cases = new ArrayList<>();
        for (LayerKind kind : LayerKinds.all()) {
            if (!REFUSED.contains(kind.name())) {
                cases.add(new EveryLayerCase(kind, DType.FLOAT32, null));
            }
            if (!REFUSED.contains(kind.name()) && !TensorParallelTest.DROPPING_WEIGHTS.contains(kind.name())) {
                cases.add(new EveryLayerCase(kind, DType.BFLOAT16, null));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("layers")
    void everyLayerGivesOutputAndGradientsOfAllTokens(EveryLayerCase one) {
        compare(one, UnaryOperator.identity());
        if (one.kind().attends()) {
            compare(one, Recomputed::new);
        }
    }

    private static void compare(EveryLayerCase one, UnaryOperator<Layer> wrapper) {
        DevicesNeeded.assume(2);
        EveryLayer.Step whole = one.train();
        List<EveryLayer.Step> parts = Ranks.local(2).run(rank -> {
            try (EveryLayer model = new EveryLayer(
                            rank.device(),
                            one.kind(),
                            one.dtype(),
                            null,
                            WeightStorage.MODEL_TYPE,
                            wrapper,
                            plan -> {},
                            new ModelPlan(ContextParallel.of(rank.communicator())));
                    Pass pass = Pass.training(rank.device())) {
                return model.step(pass);
            }
        });
        double tolerance = one.dtype() == DType.BFLOAT16 ? 4e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 2e-5;
        close(whole.y(), joined(parts.stream().map(EveryLayer.Step::y).toList()), tolerance, "y");
        close(whole.dx(), joined(parts.stream().map(EveryLayer.Step::dx).toList()), tolerance, "dx");
        close(
                whole.dmemory(),
                joined(parts.stream().map(EveryLayer.Step::dmemory).toList()),
                tolerance,
                "dmemory");
        for (int i = 0; i < whole.gradients().size(); i++) {
            int parameter = i;
            float[] sum = sum(
                    parts.stream().map(part -> part.gradients().get(parameter)).toList());
            close(whole.gradients().get(i), sum, tolerance, "gradient " + i);
        }
    }

    /** One behind the other, in the order of ranks. */
    public static float[] joined(List<float[]> parts) {
        float[] all = new float[parts.stream().mapToInt(part -> part.length).sum()];
        int end = 0;
        for (float[] part : parts) {
            System.arraycopy(part, 0, all, end, part.length);
            end += part.length;
        }
        return all;
    }

    public static float[] sum(List<float[]> terms) {
        float[] sum = new float[terms.getFirst().length];
        for (float[] term : terms) {
            for (int i = 0; i < sum.length; i++) {
                sum[i] += term[i];
            }
        }
        return sum;
    }

    public static void close(float[] expected, float[] actual, double tolerance, String what) {
        assertEquals(expected.length, actual.length, what);
        double largest = IntStream.range(0, expected.length)
                .mapToDouble(i -> Math.abs(expected[i]))
                .max()
                .orElse(0);
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i], actual[i], tolerance * Math.max(1, largest), what + "[" + i + "]");
        }
    }

    /** What adds the ranks' gradients up. */
    private enum Summing {
        DATA_PARALLEL,
        ZERO_ONE,
        ZERO_THREE
    }

    /** Trains {@code context} ranks a copy, and as many copies as there are ranks for. */
    @ParameterizedTest
    @CsvSource({
        "3, 3, 4, FROZEN_BOTTOM, DATA_PARALLEL",
        "4, 2, 2, EIGHTS, DATA_PARALLEL",
        "3, 3, 3, PLAIN, ZERO_ONE",
        "4, 2, 1, EIGHTS, ZERO_THREE"
    })
    void ranksThatShareTokensTrainAsOne(int ranks, int context, int microBatches, Variant variant, Summing summing) {
        DevicesNeeded.assume(ranks);
        TransformerLayerConfig layer = LAYER.withAttention(DROPPED_WEIGHTS)
                .withHiddenDropout(Dropout.of(0.1f))
                .withDropPath(Dropout.of(0.2f));
        int copies = ranks / context;
        RankedRun expected = RankedRun.ofOne(copies * microBatches, DType.FLOAT32, variant, layer);
        MeshShape shape =
                MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.CONTEXT, context);
        expected.assertSameSteps(Ranks.local(ranks).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                // @start region="plan"
                ContextParallel tokens = ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
                ModelPlan plan = new ModelPlan(tokens);
                // @end
                Rank copy =
                        new Rank(mesh.coordinate(MeshDimension.REPLICATE), copies, rank.device(), rank.communicator());
                RankedRun.Sharing sharing = (declared, dtype, same) -> switch (summing) {
                    case DATA_PARALLEL ->
                        DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, 7), rank.communicator());
                    case ZERO_ONE -> FullySharded.allocate(declared, dtype, 7, ZeroStage.ONE, rank.communicator());
                    case ZERO_THREE -> FullySharded.allocate(declared, dtype, 7, ZeroStage.THREE, rank.communicator());
                };
                return RankedRun.of(copy, sharing, microBatches, DType.FLOAT32, variant, plan, layer);
            }
        }));
    }

    /** The ranks need not divide the heads, and whole sequences may be dropped. */
    @ParameterizedTest
    @CsvSource({
        "5, 3, EIGHTS, CAUSAL",
        "3, 4, DROPOUT, NONE",
        "3, 4, FROZEN_BOTTOM, CAUSAL",
        "4, 3, RECOMPUTED_EIGHTS, CAUSAL"
    })
    void ranksThatGatherKeysTrainAsOne(int ranks, int microBatches, Variant variant, AttentionMask.Kind mask) {
        DevicesNeeded.assume(ranks);
        TransformerLayerConfig layer = LAYER.withAttention(
                        DROPPED_WEIGHTS.withMask(new AttentionMask(mask, -1, mask == AttentionMask.Kind.NONE ? -1 : 0)))
                .withHiddenDropout(Dropout.of(0.1f));
        RankedRun expected = RankedRun.ofOne(microBatches, DType.FLOAT32, variant, layer);
        expected.assertSameSteps(Ranks.local(ranks).run(rank -> {
            ModelPlan plan =
                    new ModelPlan(ContextParallel.of(rank.communicator()).withAllGather());
            Rank only = new Rank(0, 1, rank.device(), rank.communicator());
            RankedRun.Sharing sharing = (declared, dtype, given) ->
                    DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, 7), rank.communicator());
            return RankedRun.of(only, sharing, microBatches, DType.FLOAT32, variant, plan, layer);
        }));
    }

    /** Layers are split among two ranks, tokens among others: each attends with a part of its half of the heads. */
    @ParameterizedTest
    @CsvSource({"6, 3, 2, RECOMPUTED_EIGHTS"})
    void ranksThatSplitLayersShareTokensToo(int ranks, int context, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        int copies = ranks / (2 * context);
        TransformerLayerConfig layer = LAYER.withAttention(DROPPED_WEIGHTS).withHiddenDropout(Dropout.of(0.1f));
        RankedRun expected = RankedRun.ofOne(copies * microBatches, DType.FLOAT32, variant, layer);
        MeshShape shape = MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, copies)
                .with(MeshDimension.CONTEXT, context)
                .with(MeshDimension.TENSOR, 2);
        List<RankedRun> runs = Ranks.local(ranks).run(rank -> {
            Communicator world = rank.communicator();
            int half = rank.index() % 2;
            try (Mesh mesh = Mesh.of(world, shape);
                    Communicator same =
                            world.split(half, rank.index(), world.config().withName("same half"))) {
                ModelPlan plan = new ModelPlan(
                        TensorParallel.of(mesh.along(MeshDimension.TENSOR)),
                        ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
                Rank copy = new Rank(mesh.coordinate(MeshDimension.REPLICATE), copies, rank.device(), world);
                RankedRun.Sharing sharing = (declared, dtype, given) ->
                        DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, 7), same);
                return RankedRun.of(copy, sharing, microBatches, DType.FLOAT32, variant, plan, layer);
            }
        });
        for (int i = 0; i < 2; i++) {
            int half = i;
            expected.assertSameSteps(IntStream.range(0, ranks)
                    .filter(rank -> rank % 2 == half)
                    .mapToObj(runs::get)
                    .toList());
        }
    }
}
