package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.State;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.sharding.ShrinkTraining.Victim;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks that go on after the reduction of a step's amaxes was aborted, which leaves anything in amaxes, histories and scales. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class AbortedAmaxesTest {
    private static final int RANKS = 3;
    private static final int STEPS = 3;
    private static final int LENGTH = 5;
    private static final float GARBAGE = 1e30f;
    private static final float LARGEST = 448;
    private static final String HISTORY = "quantizers.forward.float8_e4m3.amax_history";

    private static final CommunicatorConfig CONFIG =
            CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(20));

    /** What a rank has after it went on: the forward history, and the scales in the order of its columns. */
    private record Left(float[][] history, float[] scales) {}

    private static DelayedScaling recipe() {
        return DelayedScaling.standard().withAmaxHistoryLength(LENGTH);
    }

    private static Tensor history(State scales) {
        return Objects.requireNonNull(scales.tensors().get(HISTORY));
    }

    private static float[][] rows(State scales, Stream stream) {
        float[] values = history(scales).toFloats(stream);
        int places = values.length / LENGTH;
        float[][] rows = new float[LENGTH][];
        for (int row = 0; row < LENGTH; row++) {
            rows[row] = Arrays.copyOfRange(values, row * places, (row + 1) * places);
        }
        return rows;
    }

    /** Returns the forward scales, which stand before their history. */
    private static Map<String, Tensor> forward(State scales) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (Map.Entry<String, Tensor> entry : scales.tensors().entrySet()) {
            if (entry.getKey().equals(HISTORY)) {
                return found;
            }
            found.put(entry.getKey(), entry.getValue());
        }
        throw new AssertionError(scales.tensors().keySet());
    }

    /** Writes what an aborted reduction may leave: garbage as the last step's amaxes, and scales that were computed from it. */
    private static void spoil(State scales, Stream stream) {
        scales.tensors().forEach((name, tensor) -> {
            float[] values = tensor.toFloats(stream);
            int from = name.endsWith("amax_history") ? values.length - values.length / LENGTH : 0;
            Arrays.fill(values, from, values.length, from > 0 ? GARBAGE : LARGEST / GARBAGE);
            tensor.set(stream, values);
        });
    }

    private static Left left(State scales, Stream stream) {
        Map<String, Tensor> forward = forward(scales);
        float[] values = new float[forward.size()];
        int i = 0;
        for (Tensor scale : forward.values()) {
            values[i++] = scale.toFloats(stream)[0];
        }
        return new Left(rows(scales, stream), values);
    }

    /** The last rank's amaxes of each step are lost with it; rank 0's own ones are {@code own}. */
    private static void check(Left left, List<float[]> reduced, float[] own) {
        float[][] expected = new float[LENGTH][own.length];
        expected[LENGTH - 3] = reduced.get(0);
        expected[LENGTH - 2] = reduced.get(1);
        expected[LENGTH - 1] = own;
        for (int row = 0; row < LENGTH; row++) {
            assertArrayEquals(expected[row], left.history()[row], "row " + row);
        }
        for (int place = 0; place < own.length; place++) {
            double largest = 0;
            for (float[] row : expected) {
                largest = Math.max(largest, row[place]);
            }
            assertEquals(LARGEST / largest, left.scales()[place], LARGEST / largest * 1e-6, "place " + place);
        }
    }

    /** The last rank fails when all have made their steps, which a failure during them would end. */
    private static void failIfLast(Rank rank, CountDownLatch stepped) throws InterruptedException {
        stepped.countDown();
        stepped.await();
        if (rank.index() == RANKS - 1) {
            throw new IllegalStateException("the last rank fails");
        }
    }

    private record Told(Left left, List<float[]> reduced, float[] own) {}

    private static Told replicated(Rank rank, CountDownLatch stepped) throws InterruptedException {
        Stream stream = rank.device().stream();
        List<Victim> none = List.of();
        try (ShrinkTraining training = new ShrinkTraining(rank, DType.BFLOAT16, none, victim -> {})) {
            State scales = training.withRecipe(recipe());
            List<float[]> reduced = new ArrayList<>();
            float[][] own = new float[1][];
            training.beforeUpdate(() -> own[0] = rows(scales, stream)[0]);
            for (int step = 0; step < STEPS; step++) {
                training.step(step);
                reduced.add(rows(scales, stream)[LENGTH - 1]);
            }
            training.beforeUpdate(() -> {});
            spoil(scales, stream); // It waits for the device, and would hear of the failure.
            failIfLast(rank, stepped);
            assertThrows(RankFailedException.class, () -> training.step(STEPS));
            // Not among the others that shrink is given: the strategy knows the scales that it reduces.
            training.strategy = training.strategy.shrink(training.optimizer);
            Left left = left(scales, stream);
            training.step(STEPS);
            stream.synchronize(); // A rank that closes its communicator while another one uses it is an error there.
            return new Told(left, reduced, own[0]);
        }
    }

    @Test
    void dataParallelRanksGoOnWithTheirOwnAmaxes() {
        DevicesNeeded.assume(RANKS);
        var stepped = new CountDownLatch(RANKS);
        check(Ranks.local(RANKS).withConfig(CONFIG).run(rank -> replicated(rank, stepped)));
    }

    private static void check(List<Told> told) {
        assertEquals(RANKS - 1, told.size());
        Told first = told.getFirst();
        for (Told each : told) {
            check(each.left(), first.reduced(), first.own());
        }
    }

    private static Told sharded(Rank rank, CountDownLatch stepped) throws InterruptedException {
        Stream stream = rank.device().stream();
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.REPLICATE, RANKS);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                HybridShrinkTraining training = new HybridShrinkTraining(
                        rank,
                        FullyShardedConfig.of(ZeroStage.THREE),
                        mesh,
                        DType.BFLOAT16,
                        1,
                        List.of(),
                        victim -> {})) {
            training.withRecipe(recipe());
            State scales = training.scales();
            List<float[]> reduced = new ArrayList<>();
            float[][] own = new float[1][];
            training.beforeUpdate(() -> own[0] = rows(scales, stream)[0]);
            for (int step = 0; step < STEPS; step++) {
                training.step(step, rank.index());
                reduced.add(rows(scales, stream)[LENGTH - 1]);
            }
            training.beforeUpdate(() -> {});
            spoil(scales, stream); // It waits for the device, and would hear of the failure.
            failIfLast(rank, stepped);
            assertThrows(RankFailedException.class, () -> training.step(STEPS, rank.index()));
            training.strategy = training.strategy.shrink(training.optimizer);
            Left left = left(scales, stream);
            training.step(STEPS, rank.index());
            stream.synchronize();
            return new Told(left, reduced, own[0]);
        }
    }

    @Test
    void shardedCopiesGoOnWithTheirOwnAmaxes() {
        DevicesNeeded.assume(RANKS);
        var stepped = new CountDownLatch(RANKS);
        check(Ranks.local(RANKS).withConfig(CONFIG).run(rank -> sharded(rank, stepped)));
    }

    /** A rank fails behind the next sums: the reduction before them has succeeded, and its result stays. */
    @Test
    void amaxesThatAreKnownToBeReducedStay() {
        DevicesNeeded.assume(RANKS);
        var stepped = new CountDownLatch(RANKS);
        List<Told> told = Ranks.local(RANKS).withConfig(CONFIG).run(rank -> {
            Stream stream = rank.device().stream();
            try (ShrinkTraining training = new ShrinkTraining(rank, DType.BFLOAT16, List.of(), victim -> {})) {
                State scales = training.withRecipe(recipe());
                List<float[]> reduced = new ArrayList<>();
                for (int step = 0; step < STEPS; step++) {
                    training.step(step);
                    reduced.add(rows(scales, stream)[LENGTH - 1]);
                }
                training.beforeUpdate(() -> {
                    throw new RankFailedEarly();
                });
                assertThrows(RankFailedEarly.class, () -> training.step(STEPS));
                failIfLast(rank, stepped);
                training.beforeUpdate(() -> {});
                assertThrows(RankFailedException.class, () -> training.strategy.sumOverRanks(training.labelled));
                training.strategy = training.strategy.shrink(training.optimizer, scales);
                return new Told(left(scales, stream), reduced, reduced.getLast());
            }
        });
        check(told);
    }

    private static final class RankFailedEarly extends RuntimeException {
        private static final long serialVersionUID = 1;
    }
}
