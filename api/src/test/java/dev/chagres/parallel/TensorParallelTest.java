package dev.chagres.parallel;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.EveryLayer;
import dev.chagres.layer.EveryLayerCase;
import dev.chagres.layer.LayerKind;
import dev.chagres.layer.LayerKinds;
import dev.chagres.layer.LayerNormLinear;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ParallelMode;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Saved;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.SmallModel;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.commons.math3.util.ArithmeticUtils;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Layers that ranks split compute what the whole layer computes. */
@Tag("L0")
@Tag("L2")
class TensorParallelTest {
    private static final AttentionConfig MANY_HEADS = AttentionConfig.of(24, 8, AttentionMask.none());
    private static final AttentionConfig DROPPED_WEIGHTS = MANY_HEADS.withDropout(Dropout.of(0.1f));
    private static final TransformerLayerConfig LAYER = TransformerLayerConfig.encoder(SmallModel.HIDDEN, MANY_HEADS)
            .withMlp(MlpConfig.gelu(SmallModel.HIDDEN).withInner(96));
    /** What is refused: heads that two ranks do not divide. */
    private static final Set<String> REFUSED = Set.of("multi-query transformer");
    /** Of these cuDNN's kernels, which take 16 bits alone, drop other weights on each rank: {@link SplitAttentionDropoutTest}. */
    static final Set<String> DROPPING_WEIGHTS = Set.of("transformer with dropout");

    /** A step of one rank, and which part it has of each parameter. */
    private record Part(EveryLayer.Step step, List<@Nullable ParameterSplit> splits) {}

    static List<EveryLayerCase> layers() {
        List<EveryLayerCase> cases = new ArrayList<>();
        for (LayerKind kind : LayerKinds.all()) {
            if (!REFUSED.contains(kind.name())) {
                cases.add(new EveryLayerCase(kind, DType.FLOAT32, null));
            }
            if (!REFUSED.contains(kind.name()) && !DROPPING_WEIGHTS.contains(kind.name())) {
                cases.add(new EveryLayerCase(kind, DType.BFLOAT16, null));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("layers")
    void everyLayerGivesOutputAndGradientsOfTheWholeLayer(EveryLayerCase one) {
        DevicesNeeded.assume(2);
        compare(one, 2, layer -> layer);
    }

    /** Drawn sizes, for as many ranks as divide 24. */
    @ParameterizedTest
    @CsvSource({"1, 1", "2, 2", "3, 3", "4, 4", "8, 5"})
    void linearLayersAreSplitByColumnsAndRows(int ranks, int seed) {
        DevicesNeeded.assume(ranks);
        long inner = 24L * seed;
        LayerKind kind = new LayerKind(
                "linear pair",
                Sequential.class,
                (plan, m, s) -> new Sequential(
                        "pair",
                        new Linear(
                                EveryLayer.HIDDEN,
                                inner,
                                Bias.PRESENT,
                                ParallelMode.COLUMN,
                                Initializer.zeros(),
                                plan.child("a")),
                        new Linear(inner, 17L, Bias.PRESENT, ParallelMode.ROW, Initializer.zeros(), plan.child("b")),
                        new LayerNormLinear(
                                NormConfig.layerNorm(17),
                                24,
                                Bias.PRESENT,
                                ParallelMode.COLUMN,
                                Initializer.zeros(),
                                plan.child("c")),
                        new Linear(24, 40, Bias.ABSENT, ParallelMode.ROW, Initializer.zeros(), plan.child("d"))));
        compare(new EveryLayerCase(kind, DType.FLOAT32, null), ranks, layer -> layer);
        compare(new EveryLayerCase(kind, DType.FLOAT32, null), ranks, Recomputed::new);
    }

    private static void compare(EveryLayerCase one, int ranks, UnaryOperator<Layer> wrapper) {
        EveryLayer.Step whole = one.train();
        List<Part> parts = Ranks.local(ranks).run(rank -> {
            try (EveryLayer model = new EveryLayer(
                            rank.device(),
                            one.kind(),
                            one.dtype(),
                            null,
                            WeightStorage.MODEL_TYPE,
                            wrapper,
                            plan -> {},
                            new ModelPlan(TensorParallel.of(rank.communicator())));
                    Pass pass = Pass.training(rank.device())) {
                List<@Nullable ParameterSplit> splits = new ArrayList<>();
                model.parameters.all().forEach(parameter -> splits.add(parameter.split()));
                return new Part(model.step(pass), splits);
            }
        });
        double tolerance = one.dtype() == DType.BFLOAT16 ? 4e-2 : Provider.current() == Provider.CUDA ? 4e-3 : 2e-5;
        for (Part part : parts) {
            close(whole.y(), part.step.y(), tolerance, "y");
            close(whole.dx(), part.step.dx(), tolerance, "dx");
            close(whole.dmemory(), part.step.dmemory(), tolerance, "gradient of the memory");
            for (int i = 0; i < whole.gradients().size(); i++) {
                float[] expected = whole.gradients().get(i);
                ParameterSplit split = part.splits.get(i);
                float[] own = split == null ? expected : new float[expected.length / split.ranks()];
                for (int e = 0; split != null && e < own.length; e++) {
                    own[e] = expected[Math.toIntExact(split.element(e))];
                }
                close(own, part.step.gradients().get(i), tolerance, "gradient " + i, largest(expected));
            }
        }
    }

    private static double largest(float[] values) {
        return IntStream.range(0, values.length)
                .mapToDouble(i -> Math.abs(values[i]))
                .max()
                .orElse(0);
    }

    private static void close(float[] expected, float[] actual, double tolerance, String what) {
        close(expected, actual, tolerance, what, largest(expected));
    }

    private static void close(float[] expected, float[] actual, double tolerance, String what, double largest) {
        assertEquals(expected.length, actual.length, what);
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i], actual[i], tolerance * Math.max(1, largest), what + "[" + i + "]");
        }
    }

    /** Trains {@code tensor} ranks a copy, and as many copies as there are ranks for. */
    private static void train(
            int ranks,
            int tensor,
            int microBatches,
            Variant variant,
            TransformerLayerConfig layer,
            UnaryOperator<TensorParallel> change) {
        DevicesNeeded.assume(ranks);
        int copies = ranks / tensor;
        RankedRun expected = RankedRun.ofOne(copies * microBatches, DType.FLOAT32, variant, layer);
        MeshShape shape =
                MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.TENSOR, tensor);
        List<RankedRun> runs = Ranks.local(ranks).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                // @start region="plan"
                TensorParallel tensorParallel = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
                // @end
                ModelPlan plan = new ModelPlan(change.apply(tensorParallel));
                Communicator data = mesh.along(MeshDimension.REPLICATE);
                Rank copy = new Rank(data.rank(), data.ranks(), rank.device(), data);
                return RankedRun.of(
                        copy, TensorParallelTest::copies, microBatches, DType.FLOAT32, variant, plan, layer);
            }
        });
        for (int i = 0; i < tensor; i++) {
            int coordinate = i;
            expected.assertSameSteps(IntStream.range(0, ranks)
                    .filter(rank -> rank % tensor == coordinate)
                    .mapToObj(runs::get)
                    .toList());
        }
    }

    private static DataParallel copies(ModelPlan plan, DType dtype, Rank rank) {
        return DataParallel.of(Parameters.allocate(rank.device(), plan, dtype, 7), rank.communicator());
    }

    @ParameterizedTest
    @CsvSource({"2, 2, 3, DROPOUT", "6, 2, 1, PLAIN"})
    void ranksThatSplitLayersTrainAsOne(int ranks, int tensor, int microBatches, Variant variant) {
        train(
                ranks,
                tensor,
                microBatches,
                variant,
                variant == Variant.DROPOUT ? LAYER.withAttention(DROPPED_WEIGHTS) : LAYER,
                UnaryOperator.identity());
    }

    private static Map<String, Saved> afterOneStep(Rank rank, Mesh mesh, Variant variant) {
        Communicator data = mesh.along(MeshDimension.REPLICATE);
        return RankedRun.of(
                        new Rank(data.rank(), data.ranks(), rank.device(), data),
                        TensorParallelTest::copies,
                        1,
                        DType.BFLOAT16,
                        variant,
                        new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR))),
                        LAYER,
                        new Span(0, 1, null, null))
                .state();
    }

    /** Weights and remainders, gathered and joined, are the masters that are gathered. */
    @Test
    void remaindersOfSplitLayersAreGathered() {
        DevicesNeeded.assume(2);
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.REPLICATE, 1).with(MeshDimension.TENSOR, 2);
        Ranks.local(2).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                Map<String, Saved> parts = afterOneStep(rank, mesh, Variant.REMAINDERS);
                Map<String, Saved> whole = afterOneStep(rank, mesh, Variant.PLAIN);
                List<String> masters = whole.keySet().stream()
                        .filter(name -> name.endsWith(".master"))
                        .toList();
                assertFalse(masters.isEmpty());
                for (String name : masters) {
                    String weight = name.substring(0, name.lastIndexOf('.'));
                    float[] joined = joined(
                            parts.get(weight).values(),
                            parts.get(weight + ".remainder").values());
                    assertArrayEquals(whole.get(name).values(), joined, name);
                }
            }
            return rank;
        });
    }

    private static float[] joined(float[] weights, float[] bytes) {
        float[] masters = new float[weights.length];
        for (int i = 0; i < masters.length; i++) {
            int low = (int) bytes[2 * i] & 0xff | ((int) bytes[2 * i + 1] & 0xff) << 8;
            int high = (Float.floatToRawIntBits(weights[i]) >>> 16) - (low >> 15);
            masters[i] = Float.intBitsToFloat(high << 16 | low);
        }
        return masters;
    }

    /** What stands in a layer that sequence-parallel ranks train. */
    private enum Inside {
        USUAL(UnaryOperator.identity()),
        NORMED_OUTPUT(layer -> layer.withNormPlacement(NormPlacement.OUTPUT)),
        DROPPED_WEIGHTS(layer -> layer.withAttention(TensorParallelTest.DROPPED_WEIGHTS)),
        PARALLEL(layer -> layer.withBranchOrder(BranchOrder.PARALLEL).withBias(Bias.ABSENT)),
        NORMED_HEADS(layer -> layer.withNorm(NormConfig.rmsNorm(SmallModel.HIDDEN))
                .withAttention(MANY_HEADS.withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM)))),
        GATED(layer -> layer.withMlp(layer.mlp()
                .withActivation(Activation.SWIGLU)
                .withRecomputation(MlpConfig.Recomputation.FC1_AND_ACTIVATION)));

        private final UnaryOperator<TransformerLayerConfig> change;

        Inside(UnaryOperator<TransformerLayerConfig> change) {
            this.change = change;
        }
    }

    /** Each rank has a part of the tokens between branches, and drops by its part of one mask. */
    @ParameterizedTest
    @CsvSource({
        "4, 2, 2, EIGHTS, USUAL",
        "2, 2, 4, EIGHTS, NORMED_OUTPUT",
        "4, 4, 3, RECOMPUTED_EIGHTS, DROPPED_WEIGHTS",
        "4, 4, 4, EIGHTS, PARALLEL",
        "2, 2, 3, EIGHTS, NORMED_HEADS",
        "2, 2, 4, EIGHTS, GATED"
    })
    void sequenceParallelRanksTrainAsOne(int ranks, int tensor, int microBatches, Variant variant, Inside inside) {
        TransformerLayerConfig layer = inside.change.apply(LAYER.withHiddenDropout(Dropout.of(0.1f)));
        train(ranks, tensor, microBatches, variant, layer, TensorParallel::withSequenceParallel);
    }

    @Test
    void headsThatRanksDoNotDivideAreRefused() {
        assertRefused(
                "heads: layer expected a multiple of the 5 tensor-parallel ranks, among which they are divided, got 24",
                5,
                plan -> new MultiheadAttention(
                        NormConfig.layerNorm(32), MANY_HEADS, Initializer.zeros(), plan.child("layer")));
        assertRefused(
                "keyHeads: layer expected a multiple of the 2 tensor-parallel ranks, among which they are divided, got 1",
                2,
                plan -> new MultiheadAttention(
                        NormConfig.layerNorm(32),
                        MANY_HEADS.withKeyHeads(1),
                        Initializer.zeros(),
                        plan.child("layer")));
        assertRefused(
                "inner: layer expected a multiple of the 3 tensor-parallel ranks, among which they are divided, got 128",
                3,
                plan -> new LayerNormMlp(MlpConfig.gelu(32), plan.child("layer")));
        assertRefused(
                "inputs: layer expected a multiple of the 3 tensor-parallel ranks, among which they are divided, got 32",
                3,
                plan -> new Linear(32, 3, Bias.PRESENT, ParallelMode.ROW, Initializer.zeros(), plan.child("layer")));
        assertRefused(
                "mode: expected NONE or COLUMN, for a norm reads whole rows, got ROW; use Linear",
                2,
                plan -> new LayerNormLinear(
                        NormConfig.layerNorm(32), 32, Bias.PRESENT, ParallelMode.ROW, Initializer.zeros(), plan));
    }

    private static void assertRefused(String text, int ranks, Consumer<ModelPlan> declaration) {
        DevicesNeeded.assume(ranks);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(ranks)
                        .each(rank -> declaration.accept(new ModelPlan(TensorParallel.of(rank.communicator())))));
        assertTrue(failure.getCause() instanceof IllegalArgumentException, String.valueOf(failure.getCause()));
        assertEquals(text, failure.getCause().getMessage());
    }

    @Test
    void splitsCheckThemselves() {
        assertThrown(
                IllegalStateException.class,
                "group: expected layers split among ranks, got whole ones; check isSplit() first",
                () -> TensorParallel.none().group());
        ParameterSplit split = new ParameterSplit(dev.chagres.Shape.of(12, 2), 0, List.of(8L, 4L), 1, 2);
        assertThrown(
                IllegalArgumentException.class,
                "split: expected the part of whole layers, got that of rank 1 of 2",
                () -> new ModelPlan().declare("w", Initializer.zeros(), split));
        assertThrown(
                IllegalArgumentException.class,
                "sections: expected sizes of at least 1, got [12, 0]",
                () -> new ParameterSplit(split.whole(), 0, List.of(12L, 0L), 1, 2));
        assertThrown(
                IllegalArgumentException.class,
                "sections: expected sizes that add up to 12 of " + split.whole() + ", got [8, 2]",
                () -> new ParameterSplit(split.whole(), 0, List.of(8L, 2L), 1, 2));
        assertThrown(
                IllegalArgumentException.class,
                "dimension: expected 0 to 1, got 2",
                () -> new ParameterSplit(split.whole(), 2, List.of(12L), 1, 2));
        assertThrown(
                IllegalArgumentException.class,
                "rank: expected one of 2, got 2",
                () -> new ParameterSplit(split.whole(), 0, List.of(12L), 2, 2));
        // Rows 4 to 7 of the first section, then 10 and 11 of the second.
        long[] elements = IntStream.range(0, 12).mapToLong(split::element).toArray();
        org.junit.jupiter.api.Assertions.assertArrayEquals(
                new long[] {8, 9, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23}, elements);
        assertEquals(4, split.run());
        String outside = "element: expected one of [6, 2], got ";
        assertThrown(IndexOutOfBoundsException.class, outside + "-1", () -> split.element(-1));
        assertThrown(IndexOutOfBoundsException.class, outside + "12", () -> split.element(12));
        ParameterSplit empty = new ParameterSplit(dev.chagres.Shape.of(12, 0), 0, List.of(12L), 1, 2);
        assertThrown(IndexOutOfBoundsException.class, "element: expected one of [6, 0], got 0", () -> empty.element(0));
        ParameterSplit narrow = new ParameterSplit(dev.chagres.Shape.of(12), 0, List.of(12L), 1, Integer.MAX_VALUE);
        assertEquals(1, narrow.run(), "of as many ranks as there can be");
    }

    /** What is moved as one divides the part that each rank has of each section. */
    @Test
    void runsDivideAllParts() {
        for (long section = 1; section < 40; section++) {
            for (int ranks = 1; ranks < 12; ranks++) {
                long divisor = 0;
                for (int rank = 0; rank < ranks; rank++) {
                    ParameterSplit split =
                            new ParameterSplit(dev.chagres.Shape.of(section, 3), 0, List.of(section), rank, ranks);
                    divisor = ArithmeticUtils.gcd(divisor, split.shape().size(0));
                }
                ParameterSplit split =
                        new ParameterSplit(dev.chagres.Shape.of(section, 3), 0, List.of(section), 0, ranks);
                assertEquals(3 * divisor, split.run(), section + " among " + ranks);
            }
        }
    }

    /** Units lie where their elements do, in the whole and in each part. */
    @Test
    void unitsOfASplitKeepTheirPlaces() {
        for (long[] sections : new long[][] {{12}, {33}, {8, 24}, {44}, {60, 20}}) {
            for (long inner : new long[] {1, 2, 6, 16}) {
                for (int ranks = 1; ranks < 9; ranks++) {
                    long size = LongStream.of(sections).sum();
                    ParameterSplit first = new ParameterSplit(
                            dev.chagres.Shape.of(2, size, inner),
                            1,
                            LongStream.of(sections).boxed().toList(),
                            0,
                            ranks);
                    long unit = first.unit(8);
                    assertEquals(ranks == 1 ? 8 : ArithmeticUtils.gcd(8, first.run()), unit);
                    for (int rank = 0; rank < ranks; rank++) {
                        ParameterSplit split = first.of(rank);
                        ParameterSplit units = split.ofUnits(unit);
                        long count = split.shape().count();
                        assertEquals(Math.ceilDiv(count, unit), units.shape().count());
                        for (long local = 0; local < count; local++) {
                            assertEquals(split.element(local) / unit, units.element(local / unit));
                        }
                    }
                }
            }
        }
        ParameterSplit rows = new ParameterSplit(dev.chagres.Shape.of(12, 2), 0, List.of(12L), 0, 2);
        assertThrown(IllegalArgumentException.class, "unit: expected a divisor of 12, got 8", () -> rows.ofUnits(8));
        assertThrown(IllegalArgumentException.class, "block: expected at least 1, got 0", () -> rows.unit(0));
    }

    @Test
    void gradientsThatWereSummedOverRanksTakeNoMore() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan(TensorParallel.of(rank.communicator()));
                    Parameter parameter = plan.withPartialGradients().declare("w", Initializer.zeros(), 3);
                    try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1)) {
                        parameter.nextGradient();
                        parameter.gradient().set(rank.device().stream(), 1f, 2f, rank.index());
                        parameters.completeGradients();
                        parameters.completeGradients();
                        float[] sums = parameter.gradient().toFloats(rank.device().stream());
                        org.junit.jupiter.api.Assertions.assertArrayEquals(new float[] {2, 4, 1}, sums);
                        parameter.nextGradient();
                    }
                }));
        assertEquals(
                "gradient of w: summed over the 2 tensor-parallel ranks already, got another backward call; call"
                        + " norm.compute() after the step's last backward call, and the optimizer's step before the next",
                failure.getCause().getMessage());
    }
}
