package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.Optimizer;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.SmallModel;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Whatever ranks shard, they save the file that one rank saves, and any number of ranks goes on from it. */
@Tag("L0")
@Tag("L2")
class RunStateTest {
    private static final long SEED = 7;
    static final int HALF = 3;
    private static final int END = 6;

    @TempDir
    private Path folder;

    /** How many ranks keep what; a hybrid has two copies. */
    private enum Kept {
        DDP,
        ONE,
        TWO,
        THREE,
        HYBRID_TWO,
        HYBRID_EACH,
        HYBRID_ALL,
        /** Layers and vocabulary split among two ranks, of one copy or two. */
        TENSOR,
        TENSOR_COPIES,
        /** The same, with two or more ranks that shard each part of the layers. */
        TENSOR_ONE,
        TENSOR_TWO,
        TENSOR_THREE,
        TENSOR_HYBRID;

        boolean isTensor() {
            return name().startsWith("TENSOR");
        }

        /** Returns what ranks with the same part of the layers shard; null for nothing. */
        private @Nullable FullyShardedConfig zero() {
            return switch (this) {
                case TENSOR_ONE -> FullyShardedConfig.of(ZeroStage.ONE);
                case TENSOR_TWO -> FullyShardedConfig.of(ZeroStage.TWO);
                case TENSOR_THREE -> FullyShardedConfig.of(ZeroStage.THREE);
                case TENSOR_HYBRID -> FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS);
                default -> null;
            };
        }

        /** Trains parts of layers on two ranks each, which compute the same. */
        private RankedRun runSplit(Rank rank, int parts, DType type, Variant variant, Span span) {
            int copies = rank.count() / 2;
            int whole = zero() == null ? copies : this == TENSOR_HYBRID ? 2 : 1;
            MeshShape shape = MeshShape.ofOne()
                    .with(MeshDimension.REPLICATE, whole)
                    .with(MeshDimension.SHARD, copies / whole)
                    .with(MeshDimension.TENSOR, 2);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                Communicator data = mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD);
                return RankedRun.of(
                        new Rank(data.rank(), data.ranks(), rank.device(), data),
                        new SplitLayers(mesh, zero()),
                        parts / copies,
                        type,
                        variant,
                        new ModelPlan(TensorParallel.of(mesh.along(MeshDimension.TENSOR))),
                        SmallModel.LAYER,
                        span);
            }
        }

        RankedRun run(Rank rank, int microBatches, DType type, Variant variant, Span span) {
            if (this == DDP) {
                return RankedRun.of(
                        rank,
                        (plan, dtype, r) ->
                                DataParallel.of(Parameters.allocate(r.device(), plan, dtype, SEED), r.communicator()),
                        microBatches,
                        type,
                        variant,
                        span);
            }
            boolean hybrid = name().startsWith("HYBRID");
            int copies = hybrid ? 2 : 1;
            FullyShardedConfig config = FullyShardedConfig.of(
                            this == ONE
                                    ? ZeroStage.ONE
                                    : this == TWO || this == HYBRID_TWO ? ZeroStage.TWO : ZeroStage.THREE)
                    .withOptimizer(this == HYBRID_ALL ? OptimizerSharding.ALL_RANKS : OptimizerSharding.EACH_COPY);
            MeshShape shape = MeshShape.ofOne()
                    .with(MeshDimension.REPLICATE, copies)
                    .with(MeshDimension.SHARD, rank.count() / copies);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                return RankedRun.of(
                        rank,
                        (plan, dtype, r) -> FullySharded.allocate(plan, dtype, SEED, config, mesh),
                        microBatches,
                        type,
                        variant,
                        span);
            }
        }

        List<RankedRun> run(int ranks, int parts, DType dtype, Variant variant, Span span) {
            if (isTensor()) {
                List<RankedRun> all = Ranks.local(ranks).run(rank -> runSplit(rank, parts, dtype, variant, span));
                return IntStream.range(0, ranks)
                        .filter(rank -> rank % 2 == 0)
                        .mapToObj(all::get)
                        .toList();
            }
            return Ranks.local(ranks).run(rank -> run(rank, parts / ranks, dtype, variant, span));
        }
    }

    /** Copies of layers that ranks split, whole or sharded. */
    private record SplitLayers(Mesh mesh, @Nullable FullyShardedConfig zero) implements RankedRun.Sharing {
        @Override
        public Strategy share(ModelPlan plan, DType dtype, Rank rank) {
            return zero == null
                    ? DataParallel.of(Parameters.allocate(rank.device(), plan, dtype, SEED), rank.communicator())
                    : FullySharded.allocate(plan, dtype, SEED, zero, mesh);
        }

        @Override
        public RunState state(Strategy strategy, Optimizer optimizer, State others) {
            // @start region="split"
            RunState state =
                    RunState.of(strategy).over(mesh).optimizer(optimizer).with(others);
            // @end
            return state;
        }
    }

    private static float loss(List<RankedRun> runs, int step) {
        float sum = 0;
        for (RankedRun run : runs) {
            sum += run.losses()[step];
        }
        return sum;
    }

    static void assertSameBytes(Path expected, Path actual) throws IOException {
        assertEquals(-1, Files.mismatch(expected, actual), expected.getFileName() + " and " + actual.getFileName());
    }

    /** Whatever ranks have written it, a checkpoint has the same files. */
    static void assertSameCheckpoint(Path expected, Path actual) throws IOException {
        assertEquals(names(expected), names(actual));
        Path step = CheckpointFolder.of(expected).step(HALF);
        for (String name : names(step)) {
            assertSameBytes(
                    step.resolve(name), CheckpointFolder.of(actual).step(HALF).resolve(name));
        }
    }

    private static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    @ParameterizedTest
    @CsvSource({
        "DDP, 2, THREE, 4, 4, FLOAT32, DROPOUT",
        "ONE, 3, TWO, 2, 6, FLOAT32, PLAIN",
        "TWO, 4, HYBRID_ALL, 4, 4, FLOAT32, FROZEN_BOTTOM",
        "THREE, 4, DDP, 2, 4, FLOAT32, RECOMPUTED",
        "THREE, 3, ONE, 1, 3, BFLOAT16, PLAIN",
        "HYBRID_EACH, 4, THREE, 2, 4, FLOAT32, PLAIN",
        "HYBRID_ALL, 8, HYBRID_TWO, 4, 8, BFLOAT16, PLAIN",
        "DDP, 2, ONE, 4, 4, BFLOAT16, DELAYED_SCALING",
        "THREE, 2, HYBRID_EACH, 4, 4, BFLOAT16, DELAYED_SCALING",
        "HYBRID_ALL, 4, DDP, 2, 4, BFLOAT16, CURRENT_SCALING",
        "THREE, 4, DDP, 2, 4, BFLOAT16, REMAINDERS",
        "HYBRID_ALL, 4, ONE, 2, 4, BFLOAT16, REMAINDERS",
        "THREE, 4, HYBRID_ALL, 4, 4, FLOAT32, GROUPS",
        "TENSOR, 2, THREE, 4, 4, FLOAT32, DROPOUT",
        "THREE, 2, TENSOR, 2, 4, FLOAT32, FROZEN_BOTTOM",
        "TENSOR_COPIES, 4, DDP, 2, 4, BFLOAT16, REMAINDERS",
        "TENSOR, 2, TENSOR_COPIES, 4, 4, BFLOAT16, DELAYED_SCALING",
        "TENSOR_THREE, 4, DDP, 2, 4, FLOAT32, DROPOUT",
        "TENSOR_ONE, 6, TENSOR_TWO, 4, 6, BFLOAT16, REMAINDERS",
        "TENSOR_HYBRID, 8, TENSOR_THREE, 6, 12, FLOAT32, FROZEN_BOTTOM",
        "TENSOR_TWO, 6, TENSOR_HYBRID, 8, 12, BFLOAT16, DELAYED_SCALING",
        "THREE, 2, TENSOR_THREE, 8, 8, FLOAT32, PLAIN",
        "THREE, 3, DDP, 2, 6, BFLOAT16, ADAFACTOR",
        "TENSOR_THREE, 4, HYBRID_ALL, 4, 4, FLOAT32, ADAFACTOR",
        "TENSOR_THREE, 4, DDP, 2, 4, FLOAT32, MUON",
        "HYBRID_ALL, 4, TENSOR_HYBRID, 8, 8, FLOAT32, MUON"
    })
    void ranksGoOnFromWhatOthersSaved(
            Kept kept, int ranks, Kept later, int laterRanks, int parts, DType dtype, Variant variant)
            throws IOException {
        DevicesNeeded.assume(Math.max(ranks, laterRanks));
        new Saved(folder, kept, ranks, parts, dtype, variant).isGoneOnFromBy(later, laterRanks);
    }

    /** A run of some ranks, its half and its end. */
    private static final class Saved {
        private final Path folder;
        private final int parts;
        private final DType dtype;
        private final Variant variant;
        private final Path half;
        private final Path steps;
        private final List<RankedRun> straight;
        private final RankedRun one;

        /** Ranks that saved go on with the same bits, and one rank with nearly the same losses. */
        Saved(Path folder, Kept kept, int ranks, int parts, DType dtype, Variant variant) throws IOException {
            this.folder = folder;
            this.parts = parts;
            this.dtype = dtype;
            this.variant = variant;
            half = folder.resolve("half");
            Path end = folder.resolve("end");
            steps = Files.createDirectory(Span.steps(half));
            straight = kept.run(ranks, parts, dtype, variant, new Span(0, END, null, end));
            kept.run(ranks, parts, dtype, variant, new Span(0, HALF, null, half));
            Path resumed = folder.resolve("resumed");
            List<RankedRun> again = kept.run(ranks, parts, dtype, variant, new Span(HALF, END, half, resumed));
            if (Provider.current() == Provider.REFERENCE) {
                for (int step = HALF; step < END; step++) {
                    assertEquals(loss(straight, step), loss(again, step), "loss of step " + step);
                }
                assertSameBytes(end, resumed);
            }
            Path byOne = folder.resolve("one");
            Files.createDirectory(Span.steps(byOne));
            RankedRun.ofOne(parts, dtype, variant, new Span(HALF, HALF, steps, byOne));
            assertSameBytes(half, byOne);
            assertSameCheckpoint(steps, Span.steps(byOne));
            one = RankedRun.ofOne(parts, dtype, variant, new Span(HALF, END, half, null));
        }

        void isGoneOnFromBy(Kept later, int laterRanks) throws IOException {
            Path byOthers = folder.resolve("others of " + later + laterRanks);
            Files.createDirectory(Span.steps(byOthers));
            later.run(laterRanks, parts, dtype, variant, new Span(HALF, HALF, steps, byOthers));
            assertSameBytes(half, byOthers);
            assertSameCheckpoint(steps, Span.steps(byOthers));
            List<RankedRun> others = later.run(laterRanks, parts, dtype, variant, new Span(HALF, END, half, null));
            double tolerance = dtype == DType.BFLOAT16 ? 1e-2 : Provider.current() == Provider.REFERENCE ? 1e-5 : 1e-3;
            for (int step = HALF; step < END; step++) {
                float loss = loss(straight, step);
                assertEquals(loss, loss(others, step), tolerance * loss, "loss of step " + step);
                assertEquals(loss, one.losses()[step], tolerance * loss, "loss of step " + step + " on one rank");
            }
        }
    }

    /** Before the first step, ranks save the bytes that one rank saves. */
    @ParameterizedTest
    @CsvSource({
        "DDP, 3, BFLOAT16, DELAYED_SCALING",
        "ONE, 3, BFLOAT16, BLOCK_SCALING",
        "TWO, 2, FLOAT32, FROZEN_BOTTOM",
        "THREE, 8, BFLOAT16, DELAYED_SCALING",
        "HYBRID_EACH, 6, FLOAT32, PLAIN",
        "HYBRID_ALL, 6, BFLOAT16, FROZEN_BOTTOM",
        "TWO, 3, BFLOAT16, REMAINDERS",
        "TENSOR, 2, BFLOAT16, REMAINDERS",
        "TENSOR_COPIES, 4, FLOAT32, PLAIN",
        "TENSOR_THREE, 6, BFLOAT16, REMAINDERS",
        "TENSOR_HYBRID, 8, FLOAT32, FROZEN_BOTTOM"
    })
    void theFileIsThatOfOneRank(Kept kept, int ranks, DType dtype, Variant variant) throws IOException {
        DevicesNeeded.assume(ranks);
        Path one = folder.resolve("one");
        Path several = folder.resolve("several");
        RankedRun.ofOne(ranks, dtype, variant, new Span(0, 0, null, one));
        kept.run(ranks, ranks, dtype, variant, new Span(0, 0, null, several));
        assertSameBytes(one, several);
    }

    /** Of 38 MB, more than the writer asks for at a time, which is more than travels at a time. */
    private static final int ROWS = 2309;

    private static final int COLUMNS = 4096;
    /** Of memory that a device holds for what travels, and for what else it takes at a time. */
    private static final long ROOM = 32L << 20;

    private static void large(Rank rank, long seed, ZeroStage stage, @Nullable Path loaded, Path saved) {
        ModelPlan plan = new ModelPlan();
        new Linear(COLUMNS, ROWS, Bias.PRESENT, Initializer.normal(0.1f), plan.group("layer"));
        try (Strategy strategy = FullySharded.allocate(plan, DType.FLOAT32, seed, stage, rank.communicator());
                AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
            RunState state = RunState.of(strategy).optimizer(optimizer);
            long before = rank.device().peakHeldBytes();
            if (loaded != null) {
                state.load(loaded);
            }
            state.save(saved, Map.of());
            Path steps = Span.steps(saved);
            state.save(CheckpointFolder.of(steps), HALF, Map.of());
            state.load(steps);
            long more = rank.device().peakHeldBytes() - before;
            assertTrue(more <= ROOM, more + " bytes more than for training");
        }
    }

    @Test
    void largeTensorsTravelInPieces() throws IOException {
        DevicesNeeded.assume(3);
        Path one = folder.resolve("one");
        Path three = folder.resolve("three");
        Path two = folder.resolve("two");
        Ranks.local(1).each(rank -> large(rank, SEED, ZeroStage.ONE, null, one));
        Ranks.local(3).each(rank -> large(rank, SEED, ZeroStage.THREE, null, three));
        assertSameBytes(one, three);
        Ranks.local(2).each(rank -> large(rank, SEED + 1, ZeroStage.THREE, Span.steps(three), two));
        assertSameBytes(one, two);
        assertSameCheckpoint(Span.steps(one), Span.steps(three));
        assertSameCheckpoint(Span.steps(one), Span.steps(two));
    }

    static ModelPlan linear(int features) {
        ModelPlan plan = new ModelPlan();
        new Linear(features, 16, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    @Test
    void example() {
        DevicesNeeded.assume(2);
        Path file = folder.resolve("run.safetensors");
        Ranks.local(2).each(rank -> {
            try (Strategy strategy = FullySharded.allocate(
                            linear(16), DType.FLOAT32, SEED, ZeroStage.THREE, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                // @start region="saved"
                RunState state = RunState.of(strategy).optimizer(optimizer);
                state.save(file, Map.of()); // each rank calls both; rank 0 has the file
                state.load(file);
                // @end
                assertEquals("state of " + strategy, state.toString());
                assertEquals(8, state.specs().size());
            }
        });
    }
}
