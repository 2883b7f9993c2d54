package dev.chagres.checkpoint;

import dev.chagres.DType;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.RankedRun;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * A program that trains and publishes a checkpoint after each step until it is killed; the next one goes on from the last. After {@link #END}
 * steps a new run begins, in another folder.
 */
final class KilledRuns {
    static final int END = 6;
    private static final int PARTS = 3;
    private static final long SEED = 7;

    private KilledRuns() {}

    /** {@code arguments}: a folder, and how many ranks. */
    public static void main(String... arguments) throws IOException {
        Path folder = Path.of(arguments[0]);
        int ranks = Integer.parseInt(arguments[1]);
        for (int run = 0; ; run++) {
            Path file = folder.resolve("run" + run);
            Path steps = Files.createDirectories(Span.steps(file));
            int first = published(steps);
            for (int step = first; step < END; step++) {
                float loss = train(ranks, new Span(step, step + 1, step == 0 ? null : steps, file))[step];
                System.out.println("loss " + step + " " + Float.floatToIntBits(loss));
                System.out.println("published " + run + " " + (step + 1));
            }
        }
    }

    /** Returns the step of the last checkpoint in a folder; 0 where there is none. */
    static int published(Path steps) {
        List<Long> all = CheckpointFolder.of(steps).steps();
        return all.isEmpty() ? 0 : all.getLast().intValue();
    }

    /** Returns the losses of the steps. */
    static float[] train(int ranks, Span span) {
        List<RankedRun> runs = ranks == 1
                ? List.of(RankedRun.ofOne(PARTS, DType.FLOAT32, Variant.PLAIN, span))
                : Ranks.local(ranks).run(rank -> train(rank, span));
        float[] losses = new float[END];
        for (int step = span.first(); step < span.end(); step++) {
            for (RankedRun run : runs) {
                losses[step] += run.losses()[step];
            }
        }
        return losses;
    }

    private static RankedRun train(Rank rank, Span span) {
        return RankedRun.of(
                rank,
                (plan, dtype, r) -> FullySharded.allocate(plan, dtype, SEED, ZeroStage.THREE, r.communicator()),
                PARTS / rank.count(),
                DType.FLOAT32,
                Variant.PLAIN,
                span);
    }
}
