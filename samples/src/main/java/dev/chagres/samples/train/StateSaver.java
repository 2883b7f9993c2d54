package dev.chagres.samples.train;

import dev.chagres.bindings.ForeignText;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.train.DataPosition;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Saves and loads the state of a run where its plan says so.
 *
 * <p>Threading: confined to the model's thread.
 */
final class StateSaver {
    private final TrainingPlan plan;
    private final TrainingModel model;
    private boolean saved;

    StateSaver(TrainingPlan plan, TrainingModel model) {
        this.plan = plan;
        this.model = model;
    }

    /**
     * Checks, before anything is computed, that the file can be written.
     *
     * @throws TrainingException when it cannot
     */
    static void ensureWritable(TrainingPlan plan) {
        Path file = plan.saving().file();
        if (file == null) {
            return;
        }
        Path folder = replaced(file).toAbsolutePath().getParent();
        if (folder == null || !canHold(folder)) {
            throw new TrainingException(
                    "--save: expected a file in a folder that can be written, got " + ForeignText.plain(file) + "; make the folder first");
        }
        if (Files.exists(file) && !Files.isRegularFile(file)) {
            throw new TrainingException("--save: expected a file or a new name, got " + ForeignText.plain(file)
                    + (Files.isDirectory(file) ? ", a folder" : ", which is none"));
        }
    }

    /** Makes a file and removes it: permissions do not tell of file systems that take none, such as {@code /proc}. */
    private static boolean canHold(Path folder) {
        try {
            Files.delete(Files.createTempFile(folder, ".safetensors-", ".tmp"));
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /** Returns the file behind a link, which is the one that is replaced. */
    private static Path replaced(Path file) {
        try {
            return Files.isSymbolicLink(file) ? file.toRealPath() : file;
        } catch (IOException e) {
            throw new TrainingException(
                    "--save: expected a file or a new name, got " + ForeignText.plain(file)
                            + ", a link to a file that is not there; remove the link or make that file",
                    e);
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
     * @throws TrainingException when it cannot be written
     */
    void save(DataPosition position) {
        Path file = plan.saving().file();
        if (file == null) {
            return;
        }
        try {
            model.save(file, position, SavedRun.description(plan));
            saved = true;
        } catch (SafetensorsException e) {
            throw new TrainingException("--save: " + e.getMessage(), e);
        }
    }

    /** Returns the file when it was written, null before. */
    @Nullable
    Path written() {
        return saved ? plan.saving().file() : null;
    }
}
