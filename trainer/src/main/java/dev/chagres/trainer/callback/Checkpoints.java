package dev.chagres.trainer.callback;

import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.Retention;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.InstantSource;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Saves the state of a run every so many steps or minutes and at its end: in one file, which each save replaces, or as checkpoints in a
 * folder, of which some are kept. A checkpoint in a folder is copied and written while the run goes on, unless told otherwise. Give it to a trainer after the {@link Evaluation} by whose loss the best are kept.
 *
 * {@snippet file="dev/chagres/trainer/callback/CheckpointsTest.java" region="checkpoints"}
 *
 * <p>Threading: confined to the thread that trains.
 */
public final class Checkpoints implements Callback, AutoCloseable {
    /** When the run goes on after a checkpoint in a folder was begun. */
    public enum Mode {
        /** At once: copies run during the next step, whose update waits for them, and a thread writes the files. */
        BACKGROUND,
        /** When it is published. */
        BLOCKING
    }

    /** What a run does when a checkpoint in a folder cannot be written; nothing is published then, and earlier ones stay. */
    public enum Failure {
        /** It ends with the reason, and tries to save its last state. */
        ENDS_RUN,
        /** It goes on; callbacks hear of it. */
        CONTINUES
    }

    /**
     * How checkpoints are written.
     *
     * @param every after how many steps; 0 for none
     * @param interval after how much time; null for none
     * @param clock tells the time
     */
    private record Plan(int every, @Nullable Duration interval, InstantSource clock, Mode mode, Failure failure) {
        static final Plan AT_END = new Plan(0, null, InstantSource.system(), Mode.BACKGROUND, Failure.ENDS_RUN);
    }

    private final Path file;
    /** Null where one file is replaced. */
    private final @Nullable CheckpointFolder folder;

    private final Plan plan;
    private @Nullable AtomicFile lock;
    private Evaluation.@Nullable Result evaluated;
    private int saved;
    /** When the run began, or saved last. */
    private @Nullable Instant last;

    private Checkpoints(Path file, @Nullable CheckpointFolder folder, Plan plan) {
        this.file = file;
        this.folder = folder;
        this.plan = plan;
    }

    /** Returns one that replaces a file at the end of a run, also of one that fails or is stopped. */
    public static Checkpoints file(Path file) {
        return new Checkpoints(file, null, Plan.AT_END);
    }

    /** Returns one that publishes a checkpoint in {@code folder} at the end of a run, also of one that fails or is stopped, and keeps all. */
    public static Checkpoints in(Path folder) {
        return new Checkpoints(folder, CheckpointFolder.of(folder), Plan.AT_END);
    }

    /**
     * Returns the same that also saves after each step whose number divides by {@code steps}.
     *
     * @param steps 0 for the end alone
     * @throws IllegalArgumentException when it is negative
     */
    public Checkpoints withEvery(int steps) {
        if (steps < 0) {
            throw new IllegalArgumentException("steps: expected 0 or more, got " + steps);
        }
        return with(new Plan(steps, null, plan.clock, plan.mode, plan.failure));
    }

    private Checkpoints with(Plan newPlan) {
        return new Checkpoints(file, folder, newPlan);
    }

    /**
     * Returns the same that also saves after the first step that ends so long after the save before, or after the beginning of the run. Of
     * ranks in several processes the first one's clock counts.
     *
     * @throws IllegalArgumentException when the time is not positive
     */
    public Checkpoints withEvery(Duration interval) {
        return withEvery(interval, InstantSource.system());
    }

    /**
     * Returns the same by another clock.
     *
     * @throws IllegalArgumentException when the time is not positive
     */
    public Checkpoints withEvery(Duration interval, InstantSource clock) {
        if (interval.compareTo(Duration.ZERO) <= 0) {
            throw new IllegalArgumentException("interval: expected a positive time, got " + interval);
        }
        return with(new Plan(0, interval, clock, plan.mode, plan.failure));
    }

    /** Returns the same whose run goes on earlier or later; where one file is replaced it always waits. */
    public Checkpoints withMode(Mode mode) {
        return with(new Plan(plan.every, plan.interval, plan.clock, mode, plan.failure));
    }

    /** Returns the same whose run ends or goes on when a checkpoint in a folder cannot be written; where one file is replaced it ends. */
    public Checkpoints withFailure(Failure failure) {
        return with(new Plan(plan.every, plan.interval, plan.clock, plan.mode, failure));
    }

    /**
     * Returns the same that keeps some checkpoints; the best are those with the lowest loss of an {@link Evaluation} after their step.
     *
     * @throws IllegalArgumentException when one file is replaced
     */
    public Checkpoints with(Retention retention) {
        CheckpointFolder all = folder;
        if (all == null) {
            throw new IllegalArgumentException("retention: expected checkpoints in a folder, got the file " + file);
        }
        return new Checkpoints(file, all.with(retention), plan);
    }

    /**
     * Returns the same that takes at most so much page-locked memory of the host on each rank while it saves in the background, as {@link
     * CheckpointFolder#withPinnedBytes} says.
     *
     * @throws IllegalArgumentException when one file is replaced, or they are less than 32 MiB
     */
    public Checkpoints withPinnedBytes(long bytes) {
        CheckpointFolder all = folder;
        if (all == null) {
            throw new IllegalArgumentException("bytes: expected checkpoints in a folder, got the file " + file);
        }
        return new Checkpoints(file, all.withPinnedBytes(bytes), plan);
    }

    /**
     * Tries, before anything is computed, whether it can save, and keeps other runs from the place until it is closed.
     *
     * @throws dev.chagres.io.SafetensorsException when it cannot be written
     * @throws java.io.UncheckedIOException when another run writes the file
     */
    public void claim() {
        if (folder != null) {
            folder.claim();
        } else if (lock == null) {
            SafetensorsWriter.tryOut(file);
            lock = AtomicFile.create(file);
        }
    }

    /** Lets other runs save there; a second call does nothing. */
    @Override
    public void close() {
        AtomicFile present = lock;
        lock = null;
        if (present != null) {
            present.discard();
        }
        if (folder != null) {
            folder.close();
        }
    }

    /** {@inheritDoc} */
    @Override
    public boolean isDue(int steps) {
        Duration interval = plan.interval;
        if (interval == null) {
            return plan.every != 0 && steps % plan.every == 0;
        }
        Instant now = plan.clock.instant();
        Instant since = last;
        return since != null && !now.isBefore(since.plus(interval));
    }

    @Override
    public boolean isTimed() {
        return plan.interval != null;
    }

    /** {@inheritDoc} */
    @Override
    public void onResume(Map<String, String> texts) {
        last = plan.clock.instant();
    }

    @Override
    public void onStart(TrainingRun run) {
        run.ensureSaves();
        boolean often = plan.every > 0 || plan.interval != null;
        if (often && folder != null && plan.mode == Mode.BACKGROUND) {
            run.reserveSaves(folder);
        }
    }

    @Override
    public boolean isDueAtEnd() {
        return true;
    }

    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        evaluated = result;
    }

    /** {@inheritDoc} */
    @Override
    public void onCheckpoint(TrainingRun run) {
        last = plan.clock.instant();
        CheckpointFolder all = folder;
        if (all == null) {
            run.save(file, Map.of());
            saved = run.steps();
        } else if (plan.mode == Mode.BACKGROUND) {
            run.saveInBackground(all, textsOf(run.steps()));
        } else {
            run.save(all, textsOf(run.steps()));
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onSaved(TrainingRun run, int step) {
        saved = step;
    }

    /** {@inheritDoc} */
    @Override
    public boolean onSaveFailed(TrainingRun run, int step, SafetensorsException failure) {
        return plan.failure == Failure.CONTINUES;
    }

    private Map<String, String> textsOf(int step) {
        Evaluation.Result result = evaluated;
        return result != null && result.step() == step
                ? Map.of(Retention.METRIC, Double.toString(result.loss()))
                : Map.of();
    }

    /** Returns after how many steps it saved last; 0 before. */
    public int saved() {
        return saved;
    }

    /** Returns where it saves, and when. */
    @Override
    public String toString() {
        String times = plan.interval != null
                ? "every " + plan.interval + " and "
                : plan.every == 0 ? "" : "every " + plan.every + " steps and ";
        return (folder == null ? file.toString() : folder + ", " + plan.mode) + ", " + times + "at the end";
    }
}
