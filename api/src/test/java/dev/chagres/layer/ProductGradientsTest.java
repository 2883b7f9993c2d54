package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.SmallModel;
import dev.chagres.sharding.ZeroStage;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Gradients that products write in the 16 bits in which ranks sum them: with one micro-batch a step they have the bits of FP32 gradients that
 * are cast once, as those are that wait for the last micro-batch.
 */
@Tag("L0")
@Tag("L2")
class ProductGradientsTest {
    private static final long SEED = 7;
    private static final int STEPS = 5;
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;

    private static FullyShardedConfig config(DType reduceType, GradientSync sync) {
        return FullyShardedConfig.of(ZeroStage.THREE).withReduceType(reduceType).withGradientSync(sync);
    }

    private static MeshShape shape(int replicate, int shard, int context, int tensor) {
        return MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, replicate)
                .with(MeshDimension.SHARD, shard)
                .with(MeshDimension.CONTEXT, context)
                .with(MeshDimension.TENSOR, tensor);
    }

    private static RankedRun train(
            Rank rank, MeshShape shape, FullyShardedConfig config, DType dtype, Variant variant, Bias bias) {
        try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
            int dataRank = mesh.coordinate(MeshDimension.REPLICATE) * mesh.size(MeshDimension.SHARD)
                    + mesh.coordinate(MeshDimension.SHARD);
            int dataRanks = mesh.size(MeshDimension.REPLICATE) * mesh.size(MeshDimension.SHARD);
            TensorParallel heads =
                    TensorParallel.of(mesh.along(MeshDimension.TENSOR)).withSequenceParallel();
            ContextParallel tokens = ContextParallel.of(mesh.along(MeshDimension.CONTEXT));
            return RankedRun.of(
                    new Rank(dataRank, dataRanks, rank.device(), rank.communicator()),
                    (plan, type, r) -> FullySharded.allocate(plan, type, SEED, config, mesh),
                    1,
                    dtype,
                    variant,
                    shape.size(MeshDimension.TENSOR) > 1 ? new ModelPlan(heads) : new ModelPlan(tokens),
                    SmallModel.LAYER.withBias(bias),
                    new Span(0, STEPS, null, null));
        }
    }

    private static void assertSame(RankedRun expected, RankedRun actual) {
        float tolerance = REFERENCE ? 0 : 1e-2f;
        assertArrayEquals(expected.losses(), actual.losses(), tolerance);
        assertArrayEquals(expected.norms(), actual.norms(), REFERENCE ? 0 : 1e-1f);
        RankedRun.assertClose(expected.state(), actual.state(), REFERENCE ? 0 : 2e-1);
    }

    /** The head is tied to the embedding; ranks have unequal sequences. */
    @ParameterizedTest
    @CsvSource({
        "1, 2, 1, 1, EACH_COPY, BFLOAT16, PLAIN, PRESENT",
        "1, 4, 1, 1, EACH_COPY, BFLOAT16, PLAIN, ABSENT",
        "1, 4, 1, 1, EACH_COPY, BFLOAT16, FROZEN_BOTTOM, PRESENT",
        "1, 3, 1, 1, EACH_COPY, FLOAT16, RECOMPUTED, PRESENT",
        "1, 2, 1, 1, EACH_COPY, BFLOAT16, DELAYED_SCALING, PRESENT",
        "1, 3, 1, 1, EACH_COPY, BFLOAT16, BLOCK_SCALING, PRESENT",
        "1, 4, 1, 1, EACH_COPY, BFLOAT16, CURRENT_SCALING, ABSENT",
        "2, 2, 1, 1, EACH_COPY, BFLOAT16, DROPOUT, PRESENT",
        "2, 2, 1, 1, ALL_RANKS, BFLOAT16, RECOMPUTED, PRESENT",
        "1, 2, 2, 1, EACH_COPY, BFLOAT16, EIGHTS, PRESENT",
        "1, 2, 1, 2, EACH_COPY, BFLOAT16, EIGHTS, PRESENT",
        "1, 2, 1, 2, EACH_COPY, FLOAT16, RECOMPUTED_EIGHTS, ABSENT"
    })
    void theBitsAreThoseOfOneCast(
            int replicate,
            int shard,
            int context,
            int tensor,
            OptimizerSharding optimizer,
            DType dtype,
            Variant variant,
            Bias bias) {
        MeshShape shape = shape(replicate, shard, context, tensor);
        DevicesNeeded.assume(shape.ranks());
        FullyShardedConfig cast = config(dtype, GradientSync.LAST_MICRO_BATCH).withOptimizer(optimizer);
        FullyShardedConfig written =
                config(dtype, GradientSync.EACH_MICRO_BATCH).withOptimizer(optimizer);
        List<RankedRun> expected =
                Ranks.local(shape.ranks()).run(rank -> train(rank, shape, cast, dtype, variant, bias));
        List<RankedRun> actual =
                Ranks.local(shape.ranks()).run(rank -> train(rank, shape, written, dtype, variant, bias));
        for (int rank = 0; rank < expected.size(); rank++) {
            assertSame(expected.get(rank), actual.get(rank));
        }
    }

    /** Three matrices of one group. */
    private record Branch(Embedding embedding, Linear in, Linear out) {
        private static final Initializer FIRST = Initializer.normal(0.5f);

        /** {@code number} says where the embedding lies among the matrices. */
        static Branch of(int number, ModelPlan group) {
            Embedding before = number % 2 == 0 ? embedding(group) : null;
            Linear in = new Linear(16, 16, FIRST, group.child("in"));
            Embedding embedding = before == null ? embedding(group) : before;
            return new Branch(embedding, in, new Linear(16, 16, FIRST, group.child("out")));
        }

        private static Embedding embedding(ModelPlan group) {
            return new Embedding(16, 16, FIRST, group.child("embedding"));
        }

        Tensor forward(Tensor ids, Pass pass) {
            return out.forward(in.forward(embedding.forward(ids, pass), pass), pass);
        }

        void backward(Tensor dy, Pass pass) {
            embedding.backward(in.backward(out.backward(dy, pass), pass), pass);
        }
    }

    /** Makes steps of groups of equal sizes, in which what products write lies elsewhere; returns each step's parts of the gradients. */
    private static List<float[]> turns(Rank rank, GradientSync sync) {
        ModelPlan plan = new ModelPlan();
        List<Branch> branches = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            branches.add(Branch.of(i, plan.group("branch." + i)));
        }
        List<float[]> steps = new ArrayList<>();
        try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2, 1, 1));
                FullySharded strategy =
                        FullySharded.allocate(plan, DType.BFLOAT16, SEED, config(DType.BFLOAT16, sync), mesh);
                Pass pass = Pass.training(rank.device())) {
            strategy.follow(pass);
            for (int step = 0; step < 3; step++) {
                pass.begin();
                strategy.lastMicroBatch();
                Tensor ids = pass.scope().tensor(DType.INT32, 3);
                ids.set(pass.stream(), rank.index(), 5 + step, 9);
                List<Tensor> results = new ArrayList<>();
                for (Branch branch : branches) {
                    results.add(branch.forward(ids, pass));
                }
                for (int i = branches.size() - 1; i >= 0; i--) {
                    branches.get(i).backward(results.get(i), pass);
                }
                strategy.sumGradients();
                steps.add(strategy.parameters().gradients().toFloats(pass.stream()));
                strategy.parameters().nextStep();
            }
        }
        return steps;
    }

    @Test
    void groupsOfEqualSizesTakeTurns() {
        DevicesNeeded.assume(2);
        List<List<float[]>> expected = Ranks.local(2).run(rank -> turns(rank, GradientSync.LAST_MICRO_BATCH));
        List<List<float[]>> actual = Ranks.local(2).run(rank -> turns(rank, GradientSync.EACH_MICRO_BATCH));
        for (int rank = 0; rank < 2; rank++) {
            for (int step = 0; step < 3; step++) {
                float[] gradients = actual.get(rank).get(step);
                assertArrayEquals(expected.get(rank).get(step), gradients, REFERENCE ? 0 : 1e-1f, "step " + step);
            }
        }
    }

    private static float rounded(float value) {
        return Float.intBitsToFloat(DType.toBfloat16(value) << 16);
    }

    private static float[] drawn(Tensor tensor, Stream stream, int seed) {
        float[] values = new float[(int) tensor.count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = rounded((float) Math.sin(seed + 1.7 * i));
        }
        tensor.set(stream, values);
        return values;
    }

    /** A second call of a micro-batch adds to 16 bits: the first product is rounded, and then the sum. */
    @Test
    void aWeightThatIsUsedTwiceIsRoundedTwice() {
        DevicesNeeded.assume(1);
        int hidden = 16;
        Ranks.local(1).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(hidden, hidden, Initializer.normal(0.5f), plan.group("layer"));
            FullyShardedConfig config = config(DType.BFLOAT16, GradientSync.EACH_MICRO_BATCH);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 1, 1, 1));
                    FullySharded strategy = FullySharded.allocate(plan, DType.BFLOAT16, SEED, config, mesh);
                    Pass pass = Pass.training(rank.device())) {
                Parameter weight = layer.weight();
                String shared =
                        ": sharded among ranks, it exists only from a backward call until it is reduced; read this"
                                + " rank's shard in Parameters.gradients()";
                assertThrown(IllegalStateException.class, "gradient of layer.weight" + shared, weight::gradient);
                Stream stream = pass.stream();
                strategy.follow(pass);
                pass.begin();
                Tensor x = pass.scope().tensor(DType.BFLOAT16, 1, hidden);
                Tensor dy = pass.scope().tensor(DType.BFLOAT16, 1, hidden);
                float[] first = drawn(x, stream, 1);
                float[] lastGradient = drawn(dy, stream, 2);
                Tensor y = layer.forward(x, pass);
                float[] second = y.toFloats(stream);
                Tensor last = layer.forward(y, pass);
                assertEquals(hidden, last.size(1));
                Tensor dx = layer.backward(dy, pass);
                float[] firstGradient = dx.toFloats(stream);
                assertEquals(DType.BFLOAT16, weight.gradient().dtype());
                assertEquals(DType.FLOAT32, layer.bias().gradient().dtype());
                layer.backward(dx, pass);
                assertThrown(IllegalStateException.class, "gradient of layer.weight" + shared, weight::gradient);
                assertThrown(IllegalStateException.class, "gradient of layer.bias" + shared, layer.bias()::gradient);
                strategy.sumGradients();
                float[] sum = strategy.parameters().gradients().toFloats(stream);
                for (int i = 0; i < hidden * hidden; i++) {
                    float added = rounded(lastGradient[i / hidden] * second[i % hidden]);
                    float expected = rounded(added + firstGradient[i / hidden] * first[i % hidden]);
                    assertEquals(expected, sum[i], REFERENCE ? 0 : 5e-2f, "weight " + i);
                }
                for (int i = 0; i < hidden; i++) {
                    float expected = rounded(lastGradient[i] + firstGradient[i]);
                    assertEquals(expected, sum[hidden * hidden + i], REFERENCE ? 0 : 5e-2f, "bias " + i);
                }
            }
        });
    }

    private static final int GROUPS = 3;
    private static final int HIDDEN = 2080;
    private static final long COUNT = (long) HIDDEN * HIDDEN;

    private static long heldBytes(Rank rank, DType dtype, FullyShardedConfig config) {
        ModelPlan plan = new ModelPlan();
        Sequential layers =
                Sequential.of(GROUPS, i -> new Linear(HIDDEN, HIDDEN, Initializer.zeros(), plan.group("layers." + i)));
        try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2, 1, 1));
                FullySharded strategy = FullySharded.allocate(plan, dtype, SEED, config, mesh);
                Pass pass = Pass.training(rank.device())) {
            strategy.follow(pass);
            pass.begin();
            strategy.lastMicroBatch();
            Tensor x = pass.scope().tensor(dtype, 2, HIDDEN);
            x.zero(pass.stream());
            layers.backward(layers.forward(x, pass), pass);
            strategy.sumGradients();
            return strategy.byteSize();
        }
    }

    /** Two groups' gradients take 2 bytes an element in place of 4, and nothing is cast that is as long as a group. */
    @ParameterizedTest
    @CsvSource({"BFLOAT16, BFLOAT16, 6", "FLOAT16, FLOAT16, 6", "BFLOAT16, FLOAT16, 0", "FLOAT32, BFLOAT16, 0"})
    void gradientsTakeHalfTheMemory(DType dtype, DType reduceType, int savedBytes) {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            long cast = heldBytes(rank, dtype, config(reduceType, GradientSync.LAST_MICRO_BATCH));
            long written = heldBytes(rank, dtype, config(reduceType, GradientSync.EACH_MICRO_BATCH));
            long slack = 3 << 20; // chunks are rounded up
            assertEquals(savedBytes * COUNT, cast - written, slack, cast + " and " + written);
        });
    }

    @Test
    void productsWriteWhatLinearLayersDeclare() {
        ModelPlan plan = new ModelPlan();
        Embedding embedding = new Embedding(24, SmallModel.HIDDEN, Initializer.zeros(), plan.group("embedding"));
        new TransformerLayer(SmallModel.LAYER, plan.group("layer"));
        Linear.tied(embedding.weight(), plan.group("head"));
        int written = 0;
        for (Parameter parameter : plan.parameters()) {
            boolean isMatrix = parameter.shape().rank() == 2 && parameter != embedding.weight();
            assertEquals(isMatrix, parameter.isWrittenByProducts(), parameter.name());
            written += isMatrix ? 1 : 0;
        }
        assertEquals(4, written, "query, key and value; the projection; both of the MLP");
    }

    /** Of other weights, and of what products do not write, gradients are FP32. */
    @Test
    void otherGradientsAreNotLent() {
        DevicesNeeded.assume(1);
        Ranks.local(1).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(16, 16, Initializer.zeros(), plan.group("layer"));
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 1, 1, 1));
                    FullySharded strategy = FullySharded.allocate(
                            plan, DType.BFLOAT16, SEED, config(DType.BFLOAT16, GradientSync.EACH_MICRO_BATCH), mesh);
                    Pass pass = Pass.training(rank.device())) {
                Parameters parameters = strategy.parameters();
                Tensor other = pass.begin().scope().tensor(DType.FLOAT16, 16, 16);
                assertThrown(
                        IllegalArgumentException.class,
                        "gradient: expected elements of FLOAT32, got FLOAT16[16, 16]",
                        () -> parameters.access().lendGradient(layer.weight(), other));
                Tensor narrow = pass.scope().tensor(DType.BFLOAT16, 16);
                assertThrown(
                        IllegalArgumentException.class,
                        "gradient: expected elements of FLOAT32, got BFLOAT16[16]",
                        () -> parameters.access().lendGradient(layer.bias(), narrow));
            }
        });
    }
}
