package dev.chagres.trainer;

import dev.chagres.batch.DataPosition;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsWriter;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Saves and loads the state of a run where its plan says so.
 *
 * <p>Threading: confined to the model's thread.
 */
final class StateSaver {
    private final TrainingPlan plan;
    private final TrainingModel model;
    /** Of the data as they were when the run began. */
    private final Map<String, String> description;

    private int tried;
    private int saved;

    StateSaver(TrainingPlan plan, TrainingModel model) {
        this.plan = plan;
        this.model = model;
        description = isAsked() ? SavedRun.description(plan) : Map.of();
    }

    /**
     * Tries, before anything is computed, whether the file can be written, and keeps other runs from it.
     *
     * @return locks {@code FILE.part} until it is discarded, or this process ends; null where nothing is saved
     * @throws TrainingException when it cannot be written
     * @throws java.io.UncheckedIOException when another run writes it
     */
    static @Nullable AtomicFile claim(TrainingPlan plan) {
        Path file = plan.saving().file();
        if (file == null) {
            return null;
        }
        naming("--save: ", () -> SafetensorsWriter.tryOut(file));
        return AtomicFile.create(file);
    }

    private static void naming(String option, Runnable work) {
        try {
            work.run();
        } catch (SafetensorsException e) {
            throw new TrainingException(option + e.getMessage(), e);
        }
    }

    /**
     * Loads what the run begins with, if the plan names it.
     *
     * @return what was not loaded of another recipe, and of this one
     * @throws TrainingException when the file does not fit the model
     */
    RecipeDifferences load(SavedRun before) {
        Path file = plan.saving().resumed();
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
            throw new TrainingException("--resume: " + oneLine(String.valueOf(e.getMessage())), e);
        }
    }

    /** A file of another model differs in every tensor, each a line: their number and the first one tell enough. */
    private static String oneLine(String text) {
        List<String> lines = text.lines().map(String::strip).toList();
        return lines.size() == 1 ? text : lines.get(0) + "; the first is " + lines.get(1);
    }

    /** Returns whether the state is to be saved after so many steps, though the run goes on. */
    boolean isDue(int steps) {
        int every = plan.saving().every();
        return every != 0 && steps % every == 0;
    }

    /** Returns whether the state is saved at the end. */
    boolean isAsked() {
        return plan.saving().file() != null;
    }

    /**
     * Replaces the file.
     *
     * @param position what of the data was taken so far
     * @param steps after how many steps
     * @throws TrainingException when it cannot be written
     */
    void save(DataPosition position, int steps) {
        Path file = plan.saving().file();
        if (file == null) {
            return;
        }
        tried = steps;
        naming("--save: ", () -> model.save(file, position, description));
        saved = steps;
    }

    /** Returns after how many steps the state was to be saved last; 0 before. */
    int tried() {
        return tried;
    }

    /** Returns after how many steps it was saved last; 0 before. */
    int saved() {
        return saved;
    }
}
