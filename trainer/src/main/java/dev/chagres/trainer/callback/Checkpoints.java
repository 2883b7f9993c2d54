package dev.chagres.trainer.callback;

import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.Retention;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.nio.file.Path;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Saves the state of a run every so many steps and at its end: in one file, which each save replaces, or as checkpoints in a folder, of which
 * some are kept. Give it to a trainer after the {@link Evaluation} by whose loss the best are kept.
 *
 * {@snippet file="dev/chagres/trainer/callback/CheckpointsTest.java" region="checkpoints"}
 *
 * <p>Threading: confined to the thread that trains.
 */
public final class Checkpoints implements Callback, AutoCloseable {
    private final Path file;
    /** Null where one file is replaced. */
    private final @Nullable CheckpointFolder folder;

    private final int every;
    private @Nullable AtomicFile lock;
    private Evaluation.@Nullable Result evaluated;
    private int saved;

    private Checkpoints(Path file, @Nullable CheckpointFolder folder, int every) {
        this.file = file;
        this.folder = folder;
        this.every = every;
    }

    /** Returns one that replaces a file at the end of a run, also of one that fails or is stopped. */
    public static Checkpoints file(Path file) {
        return new Checkpoints(file, null, 0);
    }

    /** Returns one that publishes a checkpoint in {@code folder} at the end of a run, also of one that fails or is stopped, and keeps all. */
    public static Checkpoints in(Path folder) {
        return new Checkpoints(folder, CheckpointFolder.of(folder), 0);
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
        return new Checkpoints(file, folder, steps);
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
        return new Checkpoints(file, all.with(retention), every);
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

    @Override
    public boolean isDue(int steps) {
        return every != 0 && steps % every == 0;
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
        if (folder == null) {
            run.save(file, Map.of());
        } else {
            run.save(folder, textsOf(run.steps()));
        }
        saved = run.steps();
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
        return (folder == null ? file.toString() : folder.toString()) + ", "
                + (every == 0 ? "" : "every " + every + " steps and ") + "at the end";
    }
}
