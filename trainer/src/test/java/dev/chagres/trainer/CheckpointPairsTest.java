package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Any ranks go on from the checkpoint of any others: they save the same bytes again, and have the same losses.
 *
 * <p>With {@code -Dchagres.test.pairs=FILE} all ranks, whose table is printed; the file has the pairs that held, which another call does not make
 * again. Else some that differ most.
 */
@Tag("L0")
@Tag("L2")
class CheckpointPairsTest {
    private static final int SIDE = 8;
    private static final int CONTEXT = 16;
    /** In sequences of equal length, of which 1, 2, 3, 4 and 8 ranks have equally many. */
    private static final int TOKENS = 3 * 8 * CONTEXT;

    private static final int SAVED = 2;
    private static final int STEPS = 4;
    /** Those of which most strategies make something first. */
    private static final int[] RANKS = {8, 4, 2, 3, 1};

    private static final Esm2Config CONFIG = new Esm2Config(SIDE, 8 * SIDE, SIDE, CONTEXT);

    @TempDir
    private Path folder;

    /** What ranks split or shard. */
    private enum Strategy {
        DDP,
        ZERO1,
        ZERO2,
        ZERO3,
        HSDP,
        /** The same, the optimizer sharded among both copies. */
        HSDP_ALL,
        PP,
        CP,
        TP,
        /** {@code TP} with {@code --sequence-parallel}. */
        SP,
        ZERO1_TP,
        ZERO2_TP,
        ZERO3_TP,
        HSDP_TP,
        PP_TP,
        PP_ZERO2,
        CP_ZERO3;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '+');
        }

        /** Returns the layout of so many ranks; null where they do not divide heads and copies, or another strategy has the same. */
        @Nullable
        RankLayout of(int ranks) {
            int half = ranks / 2;
            boolean even = ranks % 2 == 0;
            boolean halves = ranks >= 4 && even;
            return switch (this) {
                case DDP -> RankLayout.of(RankedSteps.mesh(1, ranks, 1, 1, 1));
                case ZERO1 -> ranks > 1 ? sharded(1, 1, ranks, 1, 1, ZeroStage.ONE) : null;
                case ZERO2 -> ranks > 1 ? sharded(1, 1, ranks, 1, 1, ZeroStage.TWO) : null;
                case ZERO3 -> ranks > 1 ? sharded(1, 1, ranks, 1, 1, ZeroStage.THREE) : null;
                case HSDP -> halves ? sharded(1, 2, half, 1, 1, ZeroStage.THREE) : null;
                case HSDP_ALL ->
                    halves ? RankLayout.of(RankedSteps.mesh(1, 2, half, 1, 1)).with(ofAllRanks()) : null;
                case PP -> ranks > 1 ? RankLayout.of(RankedSteps.mesh(ranks, 1, 1, 1, 1)) : null;
                case CP -> even ? RankLayout.of(RankedSteps.mesh(1, 1, 1, ranks, 1)) : null;
                case TP -> even ? RankLayout.of(RankedSteps.mesh(1, 1, 1, 1, ranks)) : null;
                case SP ->
                    even
                            ? new RankLayout(
                                    RankedSteps.mesh(1, 1, 1, 1, ranks),
                                    null,
                                    true,
                                    RankLayout.Places.THREADS,
                                    1,
                                    RankLayout.CpCommType.A2A,
                                    DType.FLOAT32)
                            : null;
                case ZERO1_TP -> halves ? sharded(1, 1, half, 1, 2, ZeroStage.ONE) : null;
                case ZERO2_TP -> halves ? sharded(1, 1, half, 1, 2, ZeroStage.TWO) : null;
                case ZERO3_TP -> halves ? sharded(1, 1, half, 1, 2, ZeroStage.THREE) : null;
                case HSDP_TP -> ranks == 8 ? sharded(1, 2, 2, 1, 2, ZeroStage.THREE) : null;
                case PP_TP -> halves ? RankLayout.of(RankedSteps.mesh(half, 1, 1, 1, 2)) : null;
                case PP_ZERO2 -> halves ? sharded(2, 1, half, 1, 1, ZeroStage.TWO) : null;
                case CP_ZERO3 -> halves ? sharded(1, 1, half, 2, 1, ZeroStage.THREE) : null;
            };
        }

        private static FullyShardedConfig ofAllRanks() {
            return FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS);
        }

        private static RankLayout sharded(
                int pipeline, int replicate, int shard, int context, int tensor, ZeroStage stage) {
            return RankLayout.of(RankedSteps.mesh(pipeline, replicate, shard, context, tensor))
                    .with(FullyShardedConfig.of(stage));
        }
    }

    /** Ranks of a strategy. */
    private record Manner(Strategy strategy, RankLayout layout) {
        static List<Manner> all() {
            List<Manner> all = new ArrayList<>();
            for (int ranks : RANKS) {
                for (Strategy strategy : Strategy.values()) {
                    RankLayout layout = strategy.of(ranks);
                    if (layout != null) {
                        all.add(new Manner(strategy, layout));
                    }
                }
            }
            return all;
        }

        static Manner of(Strategy strategy, int ranks) {
            RankLayout layout = strategy.of(ranks);
            assertTrue(layout != null, () -> strategy + " " + ranks);
            return new Manner(strategy, layout);
        }

        /** As many micro-batches as copies of the model and stages, of the same sequences in all. */
        ModelSetup setup() {
            return ModelSetup.of(
                            CONFIG,
                            new BatchShape(
                                    BatchLayout.PACKED, TOKENS, CONTEXT, layout.dataRanks() * layout.pipelineRanks()))
                    .with(layout);
        }

        @Override
        public String toString() {
            return strategy + " " + layout.count();
        }
    }

    /** Sequences of the longest length, each token with a label. */
    private static final class Sequences implements TokenSequences {
        private final SplittableRandom random = new SplittableRandom(3);

        @Override
        public boolean advance() {
            return true;
        }

        @Override
        public int length() {
            return CONTEXT;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            for (int i = start; i < start + count; i++) {
                ids[i] = random.nextInt(4, 24);
                labels[i] = random.nextInt(4, 24);
            }
            return count;
        }
    }

    /** Something done with a model on ranks. */
    @FunctionalInterface
    private interface Use<T> {
        T with(Training training);
    }

    private static <T> T open(Manner manner, Use<T> use) {
        ModelSetup setup = manner.setup();
        if (setup.layout().count() > 1) {
            try (var training = new RankedTraining(setup, "test", Wording.CALLS, () -> false)) {
                return use.with(training);
            }
        }
        try (Device device = Device.open();
                ModelTraining training = ModelTraining.of(device, setup)) {
            return use.with(training);
        }
    }

    private static float[] steps(Manner manner, Training training, int count) {
        BatchShape shape = manner.setup().shape();
        Batch batch = new Batch(shape);
        new SequencePacker(shape, new Sequences()).fill(batch);
        float[] losses = new float[count];
        StepResult result = new StepResult();
        for (int i = 0; i < count; i++) {
            training.upload(batch);
            training.step(1e-2f);
            training.result(result);
            losses[i] = (float) result.loss();
        }
        return losses;
    }

    private static final DataPosition POSITION = new DataPosition(SAVED, 0);
    private static final Map<String, String> TEXTS = Map.of("purpose", "pairs");

    /** A run that saved after some steps, as a folder and as a file, and went on. */
    private record Saved(Path checkpoints, Path file, float[] losses) {
        static Saved by(Manner manner, Path folder) {
            Path checkpoints = folder.resolve(manner.toString());
            Path file = folder.resolve(manner + ".safetensors");
            return new Saved(checkpoints, file, open(manner, training -> {
                steps(manner, training, SAVED);
                training.save(file, POSITION, TEXTS);
                Training.SaveProgress progress =
                        training.beginSave(CheckpointFolder.of(checkpoints), SAVED, POSITION, TEXTS);
                while (!progress.isOver()) {
                    progress = training.advanceSave();
                }
                return steps(manner, training, STEPS - SAVED);
            }));
        }

        /** Others load the folder, save the same file again, and go on with the same losses. */
        void isGoneOnFromBy(Manner later, Path again) {
            float[] own = open(later, training -> {
                training.load(checkpoints);
                training.save(again, POSITION, TEXTS);
                return steps(later, training, STEPS - SAVED);
            });
            try {
                assertEquals(-1, Files.mismatch(file, again), "the first byte that differs");
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            for (int i = 0; i < own.length; i++) {
                float bound = losses[i] * (Provider.current() == Provider.REFERENCE ? 1e-5f : 1e-3f);
                assertEquals(losses[i], own[i], bound, "loss of step " + (SAVED + 1 + i));
            }
        }
    }

    @Test
    void everyRanksGoOnFromEveryOthers() throws IOException {
        String file = System.getProperty("chagres.test.pairs");
        List<Manner> manners =
                file != null ? Manner.all() : List.of(Manner.of(Strategy.PP_TP, 4), Manner.of(Strategy.CP_ZERO3, 4));
        Assumptions.assumeTrue(
                Device.count()
                        >= manners.stream()
                                .mapToInt(one -> one.layout.count())
                                .max()
                                .orElseThrow(),
                "skipped: fewer devices than ranks");
        var pairs = new Pairs(file == null ? folder.resolve("pairs") : Path.of(file));
        for (Manner manner : manners) {
            List<Manner> left =
                    manners.stream().filter(later -> !pairs.held(manner, later)).toList();
            if (!left.isEmpty()) {
                Path own = Files.createDirectory(folder.resolve("of " + manner));
                Saved saved = Saved.by(manner, own);
                for (Manner later : left) {
                    pairs.make(manner, later, () -> saved.isGoneOnFromBy(later, own.resolve("again")));
                }
            }
        }
        if (file != null) {
            System.out.println(pairs.table(manners));
        }
        assertEquals(List.of(), pairs.failures);
    }

    /** What became of pairs: a line {@code saved -> read} of a file for each that held. */
    private static final class Pairs {
        private final Path file;
        private final Set<String> held = new HashSet<>();
        private final List<String> failures = new ArrayList<>();

        Pairs(Path file) throws IOException {
            this.file = file;
            if (Files.exists(file)) {
                held.addAll(Files.readAllLines(file));
            }
        }

        private static String line(Manner manner, Manner later) {
            return manner + " -> " + later;
        }

        boolean held(Manner manner, Manner later) {
            return held.contains(line(manner, later));
        }

        void make(Manner manner, Manner later, Runnable pair) throws IOException {
            String line = line(manner, later);
            try {
                pair.run();
            } catch (RuntimeException | AssertionError failure) {
                failures.add(line + ": " + failure);
                return;
            }
            held.add(line);
            Files.writeString(file, line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }

        /** A row for each strategy that saved: how many pairs of ranks held, for each strategy that went on. */
        String table(List<Manner> manners) {
            StringBuilder text = new StringBuilder("| saved by, read by |");
            for (Strategy later : Strategy.values()) {
                text.append(' ').append(later).append(" |");
            }
            text.append("\n|").append(" --- |".repeat(Strategy.values().length + 1));
            for (Strategy strategy : Strategy.values()) {
                text.append("\n| ").append(strategy).append(" |");
                for (Strategy later : Strategy.values()) {
                    List<Boolean> cell = manners.stream()
                            .filter(one -> one.strategy == strategy)
                            .flatMap(one -> manners.stream()
                                    .filter(other -> other.strategy == later)
                                    .map(other -> held(one, other)))
                            .toList();
                    long count = cell.stream().filter(one -> one).count();
                    text.append(' ').append(count);
                    text.append(count == cell.size() ? "" : " of " + cell.size())
                            .append(" |");
                }
            }
            int all = manners.size() * manners.size();
            return text.append('\n')
                    .append(held.size())
                    .append(" of ")
                    .append(all)
                    .append(" pairs held, ")
                    .append(failures.size())
                    .append(" failed")
                    .toString();
        }
    }
}
