package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.RankedRun.Variant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Gradients that ranks sum in 16 bits. */
@Tag("L0")
@Tag("L2")
class ReduceTypeTest {
    private static final long SEED = 7;
    private static final int RANKS = 4;
    private static final int INPUTS = 5;
    private static final int OUTPUTS = 11;
    private static final int MICRO_BATCHES = 2;

    /** What a rank has after a step. */
    private record Step(float[] gradients, CollectiveBytes bytes) {}

    private static float[] drawn(int rank, int microBatch, int salt, int count) {
        Random random = new Random(100L * rank + 10L * microBatch + salt);
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return values;
    }

    /** The gradient x^T dy of one token, as a weight [outputs, inputs] has it. */
    private static float[] gradient(int rank, int microBatch) {
        float[] x = drawn(rank, microBatch, 0, INPUTS);
        float[] dy = drawn(rank, microBatch, 1, OUTPUTS);
        float[] product = new float[INPUTS * OUTPUTS];
        for (int i = 0; i < product.length; i++) {
            product[i] = dy[i / INPUTS] * x[i % INPUTS];
        }
        return product;
    }

    private static Step step(Rank rank, FullyShardedConfig config, MeshShape shape) {
        ModelPlan plan = new ModelPlan();
        Linear layer = new Linear(INPUTS, OUTPUTS, Bias.ABSENT, Initializer.normal(0.5f), plan.group("layer"));
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                FullySharded strategy = FullySharded.allocate(plan, DType.FLOAT32, SEED, config, mesh);
                Pass pass = Pass.training(rank.device())) {
            return step(rank, layer, strategy, pass);
        }
    }

    private static Step step(Rank rank, Linear layer, Strategy strategy, Pass pass) {
        Stream stream = pass.stream();
        strategy.follow(pass);
        strategy.takeBytes();
        for (int microBatch = 0; microBatch < MICRO_BATCHES; microBatch++) {
            pass.begin();
            if (microBatch == MICRO_BATCHES - 1) {
                strategy.lastMicroBatch();
            }
            Tensor x = pass.scope().tensor(DType.FLOAT32, 1, INPUTS);
            x.set(stream, drawn(rank.index(), microBatch, 0, INPUTS));
            Tensor dy = pass.scope().tensor(DType.FLOAT32, 1, OUTPUTS);
            dy.set(stream, drawn(rank.index(), microBatch, 1, OUTPUTS));
            layer.forward(x, pass);
            layer.backward(dy, pass);
        }
        strategy.sumGradients();
        return new Step(strategy.parameters().gradients().toFloats(stream), strategy.takeBytes());
    }

    private static float rounded(float value) {
        return Float.intBitsToFloat(DType.toBfloat16(value) << 16);
    }

    /** Adds up, in FP32, what each of {@code ranks} gives rounded to BF16, and rounds the sum. */
    private static float[] sum(List<float[]> ranks) {
        float[] sum = new float[INPUTS * OUTPUTS];
        for (float[] one : ranks) {
            for (int i = 0; i < sum.length; i++) {
                sum[i] += rounded(one[i]);
            }
        }
        for (int i = 0; i < sum.length; i++) {
            sum[i] = rounded(sum[i]);
        }
        return sum;
    }

    private static float[] added(float[] a, float[] b) {
        float[] sum = a.clone();
        for (int i = 0; i < sum.length; i++) {
            sum[i] += b[i];
        }
        return sum;
    }

    private static List<Step> run(ZeroStage stage, OptimizerSharding optimizer, DType reduceType, int copies) {
        FullyShardedConfig config =
                FullyShardedConfig.of(stage).withOptimizer(optimizer).withReduceType(reduceType);
        MeshShape shape =
                MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, RANKS / copies);
        return Ranks.local(RANKS).run(rank -> step(rank, config, shape));
    }

    /** The whole gradient, put together from the ranks' parts. */
    private static float[] whole(List<Step> steps, int parts) {
        float[] all = new float[0];
        for (int rank = 0; rank < parts; rank++) {
            float[] part = steps.get(rank).gradients();
            int before = all.length;
            all = Arrays.copyOf(all, before + part.length);
            System.arraycopy(part, 0, all, before, part.length);
        }
        return Arrays.copyOf(all, INPUTS * OUTPUTS);
    }

    /** Stage 3 sums each micro-batch over the ranks and adds up in FP32; the others add up first and sum once. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void eachRankAndEachSumIsRoundedOnce(ZeroStage stage) {
        DevicesNeeded.assume(RANKS);
        List<Step> steps = run(stage, OptimizerSharding.EACH_COPY, DType.BFLOAT16, 1);
        List<Step> wide = run(stage, OptimizerSharding.EACH_COPY, DType.FLOAT32, 1);
        float[] expected;
        if (stage == ZeroStage.THREE) {
            expected = new float[INPUTS * OUTPUTS];
            for (int microBatch = 0; microBatch < MICRO_BATCHES; microBatch++) {
                List<float[]> all = new ArrayList<>();
                for (int rank = 0; rank < RANKS; rank++) {
                    all.add(gradient(rank, microBatch));
                }
                expected = added(expected, sum(all));
            }
        } else {
            List<float[]> all = new ArrayList<>();
            for (int rank = 0; rank < RANKS; rank++) {
                all.add(added(gradient(rank, 0), gradient(rank, 1)));
            }
            expected = sum(all);
        }
        boolean exact = Provider.current() == Provider.REFERENCE;
        assertArrayEquals(expected, whole(steps, RANKS), exact ? 0 : 0.1f);
        assertEquals(
                wide.getFirst().bytes().reduceScatter(),
                2 * steps.getFirst().bytes().reduceScatter());
    }

    private static Step dataParallelStep(Rank rank, DType reduceType) {
        ModelPlan plan = new ModelPlan();
        Linear layer = new Linear(INPUTS, OUTPUTS, Bias.ABSENT, Initializer.normal(0.5f), plan.group("layer"));
        try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED);
                DataParallel strategy = DataParallel.of(
                        parameters,
                        rank.communicator(),
                        DataParallelConfig.standard().withReduceType(reduceType));
                Pass pass = Pass.training(rank.device())) {
            return step(rank, layer, strategy, pass);
        }
    }

    @Test
    void dataParallelRanksRoundOnce() {
        DevicesNeeded.assume(RANKS);
        List<float[]> all = new ArrayList<>();
        for (int rank = 0; rank < RANKS; rank++) {
            all.add(added(gradient(rank, 0), gradient(rank, 1)));
        }
        boolean exact = Provider.current() == Provider.REFERENCE;
        List<Step> wide = Ranks.local(RANKS).run(rank -> dataParallelStep(rank, DType.FLOAT32));
        for (Step step : Ranks.local(RANKS).run(rank -> dataParallelStep(rank, DType.BFLOAT16))) {
            float[] found = Arrays.copyOf(step.gradients(), INPUTS * OUTPUTS);
            assertArrayEquals(sum(all), found, exact ? 0 : 0.1f);
            assertEquals(wide.getFirst().bytes().allReduce(), 2 * step.bytes().allReduce());
        }
    }

    /** Copies sum parts in the same type. */
    @ParameterizedTest
    @EnumSource(OptimizerSharding.class)
    void copiesToo(OptimizerSharding optimizer) {
        DevicesNeeded.assume(RANKS);
        List<Step> steps = run(ZeroStage.TWO, optimizer, DType.BFLOAT16, 2);
        List<Step> wide = run(ZeroStage.TWO, optimizer, DType.FLOAT32, 2);
        for (int rank = 0; rank < RANKS; rank++) {
            assertArrayEquals(wide.get(rank).gradients(), steps.get(rank).gradients(), 0.1f, "rank " + rank);
        }
        CollectiveBytes narrow = steps.getFirst().bytes();
        assertEquals(wide.getFirst().bytes().reduceScatter(), 2 * narrow.reduceScatter());
        assertEquals(wide.getFirst().bytes().allReduce(), 2 * narrow.allReduce());
    }

    @ParameterizedTest
    @CsvSource({"ONE, BFLOAT16", "TWO, FLOAT16", "THREE, BFLOAT16", "THREE, FLOAT16"})
    void trainingTakesNearlyTheSameSteps(ZeroStage stage, DType reduceType) {
        DevicesNeeded.assume(3);
        FullyShardedConfig config = FullyShardedConfig.of(stage).withReduceType(reduceType);
        RankedRun expected = RankedRun.ofOne(6, DType.FLOAT32, Variant.RECOMPUTED);
        List<RankedRun> actual = Ranks.local(3).run(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, 3);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                return RankedRun.of(
                        rank,
                        (plan, dtype, r) -> FullySharded.allocate(plan, dtype, SEED, config, mesh),
                        2,
                        DType.FLOAT32,
                        Variant.RECOMPUTED);
            }
        });
        for (int step = 0; step < RankedRun.STEPS; step++) {
            float loss = 0;
            for (RankedRun run : actual) {
                loss += run.losses()[step];
            }
            assertEquals(expected.losses()[step], loss, 1e-2 * expected.losses()[step], "loss of step " + step);
        }
    }

    @Test
    void ranksThatSumInOtherTypesAreRefused() {
        DevicesNeeded.assume(2);
        for (boolean whole : new boolean[] {true, false}) {
            RankFailedException failure = assertThrows(
                    RankFailedException.class,
                    () -> Ranks.local(2).each(rank -> {
                        DType type = rank.index() == 0 ? DType.BFLOAT16 : DType.FLOAT16;
                        ModelPlan plan = new ModelPlan();
                        plan.declare("weight", Initializer.zeros(), 8);
                        if (whole) {
                            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 1)) {
                                var config = DataParallelConfig.standard().withReduceType(type);
                                DataParallel.of(parameters, rank.communicator(), config);
                            }
                        } else {
                            var config = FullyShardedConfig.of(ZeroStage.TWO).withReduceType(type);
                            try (Mesh mesh = Mesh.of(
                                    rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, 2))) {
                                FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh);
                            }
                        }
                    }));
            assertEquals(
                    "reduceType: expected the same on all ranks, got FLOAT16 on rank 1 and BFLOAT16 on rank 0",
                    failure.getCause().getMessage());
        }
    }

    @Test
    void otherTypesAreRefused() {
        var failure = assertThrows(
                IllegalArgumentException.class,
                () -> FullyShardedConfig.of(ZeroStage.ONE).withReduceType(DType.FLOAT8_E4M3));
        assertEquals("reduceType: expected FLOAT32, BFLOAT16 or FLOAT16, got FLOAT8_E4M3", failure.getMessage());
    }
}
