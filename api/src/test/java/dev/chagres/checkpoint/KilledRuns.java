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
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * A program that trains and publishes a checkpoint after each step until it is killed; the next one goes on from the last. After {@link #END}
 * steps a new run begins, in another folder. In the background a checkpoint is written during the next step, and published after that.
 */
final class KilledRuns {
    static final int END = 6;
    private static final int PARTS = 3;
    private static final long SEED = 7;

    private KilledRuns() {}

    /** {@code arguments}: a folder, how many ranks, and {@code background}, {@code waiting}, or {@code once} for a step without a checkpoint. */
    public static void main(String... arguments) throws IOException {
        Path folder = Path.of(arguments[0]);
        int ranks = Integer.parseInt(arguments[1]);
        if (arguments[2].equals("once")) {
            train(ranks, new Span(0, 1, null, null));
            return;
        }
        for (int run = 0; ; run++) {
            Path file = folder.resolve("run" + run);
            Path steps = Files.createDirectories(Span.steps(file));
            int first = published(steps);
            if (arguments[2].equals("background")) {
                float[] losses = train(ranks, new Span(first, END, loaded(steps, first), file), run);
                for (int step = first; step < END; step++) {
                    System.out.println("loss " + step + " " + Float.floatToIntBits(losses[step]));
                }
                continue;
            }
            for (int step = first; step < END; step++) {
                float loss = train(ranks, new Span(step, step + 1, loaded(steps, step), file))[step];
                System.out.println("loss " + step + " " + Float.floatToIntBits(loss));
                System.out.println("published " + run + " " + (step + 1));
            }
        }
    }

    /** What a rank saves during its steps. */
    private static final class Background implements RankedRun.Saver {
        private final CheckpointFolder folder;
        private final int run;
        private final boolean tells;
        private PendingCheckpoint pending;
        private int saved;

        Background(Path folder, int run, boolean tells) {
            this.folder = CheckpointFolder.of(folder);
            this.run = run;
            this.tells = tells;
        }

        @Override
        public void made(int step, RunState state) {
            end();
            pending = state.saveInBackground(folder, step + 1, Map.of());
            saved = step + 1;
        }

        @Override
        public void end() {
            if (pending == null) {
                return;
            }
            pending.publish();
            if (tells) {
                System.out.println("published " + run + " " + saved);
            }
        }
    }

    /** By its own name: a program that is killed before it has written which one is the latest leaves the name of the one before. */
    private static @Nullable Path loaded(Path steps, int step) {
        return step == 0 ? null : CheckpointFolder.of(steps).step(step);
    }

    /** Returns the step of the last checkpoint in a folder; 0 where there is none. */
    static int published(Path steps) {
        List<Long> all = CheckpointFolder.of(steps).steps();
        return all.isEmpty() ? 0 : all.getLast().intValue();
    }

    /** Returns the losses of the steps. */
    static float[] train(int ranks, Span span) {
        return train(ranks, span, -1);
    }

    private static float[] train(int ranks, Span span, int run) {
        List<RankedRun> runs = ranks == 1
                ? List.of(RankedRun.ofOne(PARTS, DType.FLOAT32, Variant.PLAIN, saving(span, run, true)))
                : Ranks.local(ranks).run(rank -> train(rank, saving(span, run, rank.index() == 0)));
        float[] losses = new float[END];
        for (int step = span.first(); step < span.end(); step++) {
            for (RankedRun one : runs) {
                losses[step] += one.losses()[step];
            }
        }
        return losses;
    }

    private static Span saving(Span span, int run, boolean tells) {
        return run < 0 || span.saved() == null
                ? span
                : new Span(
                        span.first(),
                        span.end(),
                        span.loaded(),
                        span.saved(),
                        new Background(Span.steps(span.saved()), run, tells));
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
