package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Thrown;
import dev.chagres.launch.Rank;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.HybridShrinkTraining.Moment;
import dev.chagres.sharding.HybridShrinkTraining.Trained;
import dev.chagres.sharding.HybridShrinkTraining.Victim;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Sharded copies of a model go on without one that has lost a rank, as a run of the smaller mesh goes on. */
@Tag("L0")
@Tag("L2")
@Timeout(900)
class HybridShrinkTest {
    /** Groups of a mesh of other sizes are padded otherwise, so that norms are summed in another order; nothing is clipped then. */
    private static final float NO_CLIPPING = 1e6f;

    /** Ranks here fail, and are not silent: no busy machine must make one late. */
    private static final CommunicatorConfig CONFIG =
            CommunicatorConfig.standard().withTimeout(Duration.ofMinutes(10));

    /** What a rank that left was told. */
    private final List<RankFailedException> leavers = Collections.synchronizedList(new ArrayList<>());

    @TempDir
    private Path folder;

    private static MeshShape shape(int copies, int shards) {
        return MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, shards);
    }

    private static float maxNorm(MeshShape shape) {
        return shape.equals(shape(2, 2)) ? 1 : NO_CLIPPING;
    }

    private static void fail(Victim victim) {
        throw new IllegalStateException("rank " + victim.rank() + " " + victim.moment());
    }

    private Path file() {
        return folder.resolve("left.safetensors");
    }

    private Trained train(Rank rank, FullyShardedConfig config, MeshShape shape, DType dtype, List<Victim> victims)
            throws Exception {
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                HybridShrinkTraining training = new HybridShrinkTraining(
                        rank, config, mesh, dtype, maxNorm(shape), victims, HybridShrinkTest::fail)) {
            return training.train(mesh, file());
        } catch (RankFailedException left) {
            leavers.add(left);
            throw left;
        }
    }

    /** Goes on with the ranks of the smaller mesh, from the state of those that are {@code left}. */
    private Trained resume(Rank rank, FullyShardedConfig config, MeshShape shape, DType dtype, float maxNorm, int begun)
            throws Exception {
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                HybridShrinkTraining training = new HybridShrinkTraining(
                        rank, config, mesh, dtype, maxNorm, List.of(), HybridShrinkTest::fail)) {
            return training.resume(file(), begun, rank.index());
        }
    }

    private void compare(List<Trained> left, FullyShardedConfig config, MeshShape shape, DType dtype, float maxNorm) {
        int begun = left.getFirst().begun();
        List<Trained> expected =
                Ranks.local(left.size()).run(rank -> resume(rank, config, shape, dtype, maxNorm, begun));
        for (int rank = 0; rank < left.size(); rank++) {
            assertEquals(begun, left.get(rank).begun());
            for (int step = begun; step < HybridShrinkTraining.STEPS; step++) {
                assertEquals(expected.get(rank).losses()[step], left.get(rank).losses()[step], "step " + step);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, 2, THREE, 0, BEFORE_THE_SUMS, FLOAT32",
        "2, 2, ONE, 3, AFTER_THE_STEP, BFLOAT16",
        "3, 2, THREE, 2, IN_FORWARD, BFLOAT16",
        "3, 2, TWO, 5, BEFORE_THE_UPDATE, FLOAT32",
        "3, 2, THREE, 1, AFTER_THE_STEP, FLOAT32"
    })
    void wholeCopiesGoOnAsTheSmallerMesh(
            int copies, int shards, ZeroStage stage, int victim, Moment moment, DType dtype) {
        MeshShape shape = shape(copies, shards);
        DevicesNeeded.assume(shape.ranks());
        FullyShardedConfig config = FullyShardedConfig.of(stage);
        List<Trained> left = Ranks.local(shape.ranks())
                .withConfig(CONFIG)
                .run(rank -> train(rank, config, shape, dtype, List.of(new Victim(victim, 2, moment))));
        assertEquals((copies - 1) * shards, left.size());
        int begun = left.getFirst().begun();
        assertTrue(begun == 2 || begun == 3, "went on from step " + begun);
        compare(left, config, shape(copies - 1, shards), dtype, maxNorm(shape));
        int copy = victim / shards;
        assertEquals(shards - 1, leavers.size());
        int leaver = copy * shards + (victim % shards == 0 ? 1 : 0);
        RankFailedException told = leavers.getFirst();
        assertEquals(List.of(victim), told.ranks());
        String text = String.valueOf(told.getMessage());
        assertTrue(
                text.startsWith("rank " + leaver + " leaves: copy " + copy
                        + " of the model, of which it has a part, has lost rank " + victim + "; ranks "),
                text);
    }

    /** The weights that stay are registered with another communicator, where they lie. */
    @ParameterizedTest
    @CsvSource({
        "3, THREE, 2, IN_FORWARD, COPY_ENGINE, BFLOAT16",
        "2, ONE, 3, AFTER_THE_STEP, COPY_ENGINE, BFLOAT16",
        "2, TWO, 0, BEFORE_THE_SUMS, COPY_ENGINE, FLOAT32"
    })
    void weightsThatAreGatheredInWindowsStay(
            int copies, ZeroStage stage, int victim, Moment moment, WeightGather gather, DType dtype) {
        MeshShape shape = shape(copies, 2);
        DevicesNeeded.assume(shape.ranks());
        FullyShardedConfig config = FullyShardedConfig.of(stage);
        List<Victim> victims = List.of(new Victim(victim, 2, moment));
        List<Trained> left = Ranks.local(shape.ranks())
                .withConfig(CONFIG)
                .run(rank -> train(rank, config.withWeightGather(gather), shape, dtype, victims));
        assertEquals((copies - 1) * 2, left.size());
        compare(left, config, shape(copies - 1, 2), dtype, maxNorm(shape));
    }

    /** Also where gathers are of eight bits, and where a rank fails while the scales of a step are reduced. */
    @ParameterizedTest
    @CsvSource({
        "THREE, 2, BEFORE_THE_SUMS, true, DEVICE",
        "THREE, 1, AFTER_THE_STEP, true, COPY_ENGINE",
        "TWO, 3, AFTER_THE_STEP, true, DEVICE",
        "THREE, 0, BEFORE_THE_UPDATE, false, DEVICE"
    })
    void scalesOfAllRanksGoOn(ZeroStage stage, int victim, Moment moment, boolean delayed, WeightGather gather) {
        MeshShape shape = shape(2, 2);
        DevicesNeeded.assume(shape.ranks());
        Recipe recipe = delayed ? DelayedScaling.standard().withAmaxHistoryLength(4) : Float8CurrentScaling.standard();
        FullyShardedConfig config = FullyShardedConfig.of(stage).withWeightGather(gather);
        List<Trained> left = Ranks.local(shape.ranks()).withConfig(CONFIG).run(rank -> {
            List<Victim> victims = List.of(new Victim(victim, 3, moment));
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    HybridShrinkTraining training = new HybridShrinkTraining(
                            rank, config, mesh, DType.BFLOAT16, 1, victims, HybridShrinkTest::fail)) {
                return training.withRecipe(recipe).train(mesh, file());
            }
        });
        assertEquals(2, left.size());
        int begun = left.getFirst().begun();
        List<Trained> expected = Ranks.local(2).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2));
                    HybridShrinkTraining training = new HybridShrinkTraining(
                            rank, config, mesh, DType.BFLOAT16, 1, List.of(), HybridShrinkTest::fail)) {
                return training.withRecipe(recipe).resume(file(), begun, rank.index());
            }
        });
        for (int rank = 0; rank < left.size(); rank++) {
            for (int step = begun; step < HybridShrinkTraining.STEPS; step++) {
                assertEquals(expected.get(rank).losses()[step], left.get(rank).losses()[step], "step " + step);
            }
        }
    }

    @Test
    void theyGoOnTwice() {
        DevicesNeeded.assume(6);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
        List<Victim> victims =
                List.of(new Victim(1, 1, Moment.BEFORE_THE_SUMS), new Victim(4, 3, Moment.AFTER_THE_STEP));
        List<Trained> left =
                Ranks.local(6).withConfig(CONFIG).run(rank -> train(rank, config, shape(3, 2), DType.FLOAT32, victims));
        assertEquals(2, left.size());
        compare(left, config, shape(1, 2), DType.FLOAT32, NO_CLIPPING);
    }

    private String refused(FullyShardedConfig config, MeshShape shape, List<Victim> victims) {
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(shape.ranks()).withConfig(CONFIG).each(rank -> {
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                            HybridShrinkTraining training = new HybridShrinkTraining(
                                    rank, config, mesh, DType.FLOAT32, 1, victims, HybridShrinkTest::fail)) {
                        try {
                            training.step(0, rank.index());
                            training.step(1, rank.index());
                        } catch (RankFailedException expected) {
                            training.strategy.shrink(training.optimizer);
                        }
                    }
                }));
        List<String> texts = new ArrayList<>();
        texts.add(String.valueOf(failed.getMessage()));
        for (Throwable other : failed.getSuppressed()) {
            texts.add(String.valueOf(other.getMessage()));
        }
        texts.add(String.valueOf(
                assertInstanceOf(Throwable.class, failed.getCause()).getMessage()));
        return String.join("\n", texts);
    }

    @Test
    void lostPartsAreNamedWhereNoCopyIsWhole() {
        DevicesNeeded.assume(4);
        FullyShardedConfig each = FullyShardedConfig.of(ZeroStage.THREE);
        List<Victim> two = List.of(new Victim(0, 1, Moment.IN_FORWARD), new Victim(3, 1, Moment.IN_FORWARD));
        String text = refused(each, shape(2, 2), two);
        assertTrue(
                text.contains("shrink: expected a copy of the model without failed ranks, got ranks [1, 2] of"
                        + " replicate=2,shard=2;"
                        + " with rank 0 went part 0 of 2 of the weights, masters and moments of:"),
                text);
        FullyShardedConfig all = each.withOptimizer(OptimizerSharding.ALL_RANKS);
        text = refused(all, shape(2, 2), List.of(new Victim(1, 1, Moment.IN_FORWARD)));
        assertTrue(
                text.contains(
                        "shrink: expected optimizer state in each copy of the model (EACH_COPY), got it sharded among"
                                + " ALL_RANKS;"
                                + " with rank 1 went part 2 of 4 of the weights, masters and moments of:"),
                text);
        assertTrue(text.contains("no other rank has them: start again from a saved state"), text);
    }

    @Test
    void lostPartsOfTheOnlyCopyAreNamed() {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
        String text = refused(config, shape(1, 2), List.of(new Victim(1, 1, Moment.IN_FORWARD)));
        assertTrue(
                text.contains("shrink: expected copies of the model along REPLICATE, got one, sharded among all ranks;"
                        + " with rank 1 went part 1 of 2 of the weights, masters and moments of:\n  "),
                text);
        assertTrue(text.contains("\nno other rank has them: start again from a saved state"), text);
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
        Ranks.local(2).withConfig(CONFIG).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2));
                    HybridShrinkTraining training = new HybridShrinkTraining(
                            rank, config, mesh, DType.FLOAT32, 1, List.of(), HybridShrinkTest::fail)) {
                Thrown.assertThrown(
                        IllegalStateException.class,
                        "shrink: expected copies of the model along REPLICATE, got one, sharded among all ranks; start"
                                + " again from a saved state",
                        () -> training.strategy.shrink(training.optimizer));
                training.strategy.sumGradients();
                training.strategy.awaitGradients();
                Thrown.assertThrown(
                        IllegalStateException.class,
                        "norm: expected before awaitGradients(), got it after; call awaitGradients() last before the"
                                + " optimizer's step",
                        training.norm::compute);
            }
        });
        Ranks.local(2).withConfig(CONFIG).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(2, 1));
                    HybridShrinkTraining training = new HybridShrinkTraining(
                            rank, config, mesh, DType.FLOAT32, 1, List.of(), HybridShrinkTest::fail)) {
                training.strategy.sumGradients();
                training.norm.compute();
                training.optimizer.step(HybridShrinkTraining.RATE, training.norm);
                Thrown.assertThrown(
                        IllegalStateException.class,
                        "shrink: expected awaitGradients() before each step of the optimizer, got a step without it, which"
                                + " other ranks may not have made; start again from a saved state",
                        () -> training.strategy.shrink(training.optimizer));
            }
        });
    }

    /** Rank 0, which keeps the ranks' store, leaves: its copy has lost rank 1. */
    @Test
    void wholeCopiesOfProcessesGoOn() throws Exception {
        DevicesNeeded.assume(4);
        String[] arguments = {file().toString(), "600000", "1", "2", "BEFORE_THE_SUMS", "DEVICE"};
        try (RankJvms jvms = new RankJvms(folder, 4, HybridShrinkProgram.class, arguments)) {
            jvms.awaitEnd(2, 0);
            jvms.awaitEnd(3, 0);
            jvms.awaitEnd(0, 3);
            String told = jvms.last(0);
            assertTrue(told.startsWith("ranks [1] rank 0 leaves: copy 0 of the model, of which it has a part,"), told);
            FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
            List<String> expected = Ranks.local(2)
                    .run(rank ->
                            HybridShrinkProgram.text(resume(rank, config, shape(1, 2), DType.FLOAT32, NO_CLIPPING, 2)));
            assertEquals(expected, List.of(jvms.last(2), jvms.last(3)));
        }
    }

    /** On GPUs a device could wait in a window without an end. */
    @Test
    void processesThatGatherInWindowsDoNotGoOn() throws Exception {
        assumeTrue(Provider.current() == Provider.REFERENCE, "a process could not close what its device waits in");
        String[] arguments = {file().toString(), "600000", "1", "2", "BEFORE_THE_SUMS", "COPY_ENGINE"};
        try (RankJvms jvms = new RankJvms(folder, 4, HybridShrinkProgram.class, arguments)) {
            for (int rank : new int[] {0, 2, 3}) {
                jvms.awaitEnd(rank, 3);
                String told = jvms.last(rank);
                assertTrue(
                        told.contains(
                                "shrink: expected weights gathered in DEVICE memory where ranks are processes, got"
                                        + " COPY_ENGINE, with which NCCL cannot stop waiting for a failed rank; start"
                                        + " again from a saved state"),
                        told);
            }
        }
    }
}
