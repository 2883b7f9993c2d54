package dev.chagres.trainer;

import dev.chagres.io.AtomicFile;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsWriter;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Saves the state of a run every so many steps and at its end.
 *
 * <p>Threading: confined to the thread that trains.
 */
final class StateSaver implements Callback {
    private final @Nullable Path file;
    private final int every;
    /** Of the data as they were when the run began. */
    private final Map<String, String> description;

    private final Wording wording;
    private int saved;

    /**
     * Makes one for a file.
     *
     * @param file null where nothing is saved
     * @param every after how many steps, besides the end; 0 for the end alone
     * @param description texts that go into the file, by key
     */
    StateSaver(@Nullable Path file, int every, Map<String, String> description, Wording wording) {
        this.file = file;
        this.every = every;
        this.description = description;
        this.wording = wording;
    }

    /** Makes that of a plan. */
    static StateSaver of(TrainingPlan plan) {
        Path file = plan.saving().file();
        return new StateSaver(
                file, plan.saving().every(), file == null ? Map.of() : SavedRun.description(plan), Wording.OPTIONS);
    }

    /**
     * Tries, before anything is computed, whether the file can be written, and keeps other runs from it.
     *
     * @return locks {@code FILE.part} until it is discarded, or this process ends; null where nothing is saved
     * @throws TrainingException when it cannot be written
     * @throws java.io.UncheckedIOException when another run writes it
     */
    static @Nullable AtomicFile claim(@Nullable Path file, Wording wording) {
        if (file == null) {
            return null;
        }
        naming(wording.save(), () -> SafetensorsWriter.tryOut(file));
        return AtomicFile.create(file);
    }

    private static void naming(String option, Runnable work) {
        try {
            work.run();
        } catch (SafetensorsException e) {
            throw new TrainingException(option + ": " + e.getMessage(), e);
        }
    }

    /**
     * Loads what the run begins with.
     *
     * @param file null for nothing
     * @return what was not loaded of another recipe, and of this one
     * @throws TrainingException when the file does not fit the model
     */
    static RecipeDifferences load(Training model, @Nullable Path file, SavedRun before, Wording wording) {
        if (file == null) {
            return RecipeDifferences.NONE;
        }
        try {
            if (before.otherRecipe() != null) {
                return model.loadUnderOtherRecipe(file);
            }
            model.load(file);
            return RecipeDifferences.NONE;
        } catch (SafetensorsException e) {
            throw new TrainingException(wording.resume() + ": " + oneLine(String.valueOf(e.getMessage())), e);
        }
    }

    /** A file of another model differs in every tensor, each a line: their number and the first one tell enough. */
    private static String oneLine(String text) {
        List<String> lines = text.lines().map(String::strip).toList();
        return lines.size() == 1 ? text : lines.get(0) + "; the first is " + lines.get(1);
    }

    @Override
    public boolean isDue(int steps) {
        return every != 0 && steps % every == 0;
    }

    @Override
    public boolean isDueAtEnd() {
        return file != null;
    }

    /**
     * Replaces the file.
     *
     * @throws TrainingException when it cannot be written
     */
    @Override
    public void onCheckpoint(TrainingRun run) {
        Path target = file;
        if (target != null) {
            naming(wording.save(), () -> run.save(target, description));
            saved = run.steps();
        }
    }

    /** Returns after how many steps it was saved last; 0 before. */
    int saved() {
        return saved;
    }
}
