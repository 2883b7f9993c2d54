package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.ForeignText;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.trainer.SavingPlan.Data;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * How far the run was whose file a run begins with.
 *
 * <p>Threading: immutable.
 *
 * @param steps its updates
 * @param data what it took from the data
 * @param otherSums its recipe, where it differs from that of the run that goes on in how products sum; else null
 * @param otherRecipe its recipe, where scales and histories are others; else null
 * @param texts that it has saved, by key
 */
record SavedRun(
        int steps,
        DataPosition data,
        @Nullable String otherSums,
        @Nullable String otherRecipe,
        Map<String, String> texts) {
    /** Before the first step. */
    static final SavedRun NEW = new SavedRun(0, DataPosition.START);

    /** The number of the first sequence that is left, in the file. */
    static final String SEQUENCES = "data.sequences";
    /** The sequences after it that were taken, in the file. */
    static final String TAKEN_AHEAD = "data.taken_ahead";

    static final long MOST_TAKEN_AHEAD = (1L << SequencePacker.LOOK_AHEAD) - 1;

    static final String PROGRAM = "chagres train";
    private static final String RECIPE = "recipe";
    /** The key of the value of {@code --optimizer}, which files of earlier versions do not have. */
    static final String OPTIMIZER = "optimizer";

    /** The key of the value of {@code --ema}, which files without an average do not have. */
    static final String AVERAGE = "ema";

    private static final String CONTENT = "-content";
    private static final String CONTEXT = "context";
    static final String FORM = "form";
    private static final String STEPS = "step";
    private static final String UPDATES = "optimizer.step";
    private static final String SKIPPED = "loss_scaler.skipped_steps";

    /** Of a run of the same recipe. */
    SavedRun(int steps, DataPosition data) {
        this(steps, data, null, null, Map.of());
    }

    /**
     * Returns the texts of a file that a run of {@code plan} writes, by key.
     *
     * @throws dev.chagres.models.data.FastaException when the data cannot be read
     */
    static Map<String, String> description(TrainingPlan plan) {
        Map<String, String> texts = described(plan);
        texts.put(plan.data().option(), plan.data().name());
        texts.put(plan.data().option() + CONTENT, plan.data().content());
        texts.put(CONTEXT, Integer.toString(plan.shape().context()));
        return texts;
    }

    private static Map<String, String> described(TrainingPlan plan) {
        Map<String, String> texts = new LinkedHashMap<>();
        texts.put("program", PROGRAM);
        texts.put("model", plan.start().name());
        texts.put(FORM, plan.start().formText());
        texts.put(RECIPE, plan.recipe().toString());
        texts.put("seed", Long.toString(plan.seed()));
        texts.put(OPTIMIZER, OptimizerOptions.word(plan.optimizer()));
        String average = OptimizerOptions.average(plan.optimizer());
        if (!average.isEmpty()) {
            texts.put(AVERAGE, average);
        }
        texts.putAll(ScheduleOptions.description(plan.schedule()));
        return texts;
    }

    /**
     * Reads how far the run was that {@code plan} resumes.
     *
     * @throws TrainingException.WrongOption when the file is none of {@code --save}, or is that of a run of another model, recipe, seed or other data, or of
     *     so many steps that none is left; not when it is the plan's own file, of exactly its steps
     * @throws TrainingException when it cannot be read, or its numbers do not fit together
     */
    static SavedRun of(TrainingPlan plan) {
        Path path = plan.saving().resumed();
        if (path == null) {
            return NEW;
        }
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            String program = file.metadata().get("program");
            if (!PROGRAM.equals(program)) {
                throw new TrainingException.WrongOption(
                        "--resume: " + path + ": expected a file that --save has written, got "
                                + (program == null ? "another" : "one of " + ForeignText.quoted(program)));
            }
            ensureSame(file, plan);
            ensureSameOptimizer(file, plan);
            ensureSameData(file, plan);
            long steps = number(file, STEPS, Wording.OPTIONS);
            if (steps == plan.steps() && path.equals(plan.saving().file())) {
                return new SavedRun(
                        plan.steps(), checked(file, steps, Wording.OPTIONS)); // The same command was started again.
            }
            if (steps >= plan.steps()) {
                throw new TrainingException.WrongOption("--steps: expected more than the " + steps + " that " + path
                        + " has made already, for steps count in all, got " + plan.steps());
            }
            String recipe = file.metadata().get(RECIPE);
            DataPosition data = checked(file, steps, Wording.OPTIONS);
            if (recipe == null || plan.recipe().toString().equals(recipe)) {
                return new SavedRun((int) steps, data, null, null, file.metadata());
            }
            boolean sameScales = plan.recipe().goesOnFrom(recipe);
            return new SavedRun(
                    (int) steps, data, sameScales ? recipe : null, sameScales ? null : recipe, file.metadata());
        } catch (SafetensorsException e) {
            throw new TrainingException("--resume: " + e.getMessage(), e);
        }
    }

    /**
     * Reads how far the run was that has written a file, whatever it trained.
     *
     * @throws TrainingException when it cannot be read, or its numbers do not fit together
     */
    static SavedRun of(@Nullable Path path, Wording wording) {
        if (path == null) {
            return NEW;
        }
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            long steps = number(file, STEPS, wording);
            return new SavedRun(Math.toIntExact(steps), checked(file, steps, wording), null, null, file.metadata());
        } catch (SafetensorsException e) {
            throw new TrainingException(wording.resume() + ": " + e.getMessage(), e);
        }
    }

    /** Refuses other data, with which a run would go on as if nothing had changed; older files do not tell theirs. */
    private static void ensureSameData(SafetensorsFile file, TrainingPlan plan) {
        if (plan.saving().data() == Data.OTHER) {
            return;
        }
        Map<String, String> own = description(plan);
        Map<String, String> saved = file.metadata();
        String data = plan.data().option();
        String content = data + CONTENT;
        String different = !isSame(content, own, saved)
                ? "--" + data + " " + own.get(data) + ", " + own.get(content) + ", got " + saved.get(data) + ", "
                        + saved.get(content) + "; give that"
                : !isSame(CONTEXT, own, saved)
                        ? "--context " + own.get(CONTEXT) + ", got " + saved.get(CONTEXT) + "; give that"
                        : "";
        if (!different.isEmpty()) {
            throw new TrainingException.WrongOption("--resume: " + file.path() + ": expected a run with " + different
                    + ", or go on with other data: --resume-with-other-data");
        }
    }

    private static boolean isSame(String key, Map<String, String> own, Map<String, String> saved) {
        String value = saved.get(key);
        return value == null || value.equals(own.get(key));
    }

    private static void ensureSame(SafetensorsFile file, TrainingPlan plan) {
        Map<String, String> own = described(plan);
        for (String key : new String[] {"model", FORM, RECIPE, "seed"}) {
            String expected = Objects.requireNonNull(own.get(key));
            String got = key.equals(FORM) ? formOf(file) : file.metadata().get(key);
            if (got == null || !got.equals(expected) && !(key.equals(RECIPE) && takes(got, plan))) {
                throw new TrainingException.WrongOption("--resume: " + file.path() + ": expected a file of " + key + " "
                        + expected + ", got "
                        + (got == null
                                ? "none that --save has written"
                                : ForeignText.plain(got) + "; give --" + key + " " + ForeignText.plain(got)));
            }
        }
    }

    /** Returns the form of the model; older files do not tell theirs, which was NVIDIA's. */
    static String formOf(SafetensorsFile file) {
        return file.metadata().getOrDefault(FORM, TrainingPlan.ModelForm.NVIDIA.toString());
    }

    private static void ensureSameOptimizer(SafetensorsFile file, TrainingPlan plan) {
        if (!isSame(OPTIMIZER, described(plan), file.metadata())) {
            String saved =
                    ForeignText.plain(Objects.requireNonNull(file.metadata().get(OPTIMIZER)));
            throw new TrainingException.WrongOption("--resume: " + file.path() + ": expected a file of optimizer "
                    + OptimizerOptions.word(plan.optimizer()) + ", got " + saved + "; give --optimizer " + saved);
        }
        String average = file.metadata().getOrDefault(AVERAGE, "");
        boolean averages = !OptimizerOptions.average(plan.optimizer()).isEmpty();
        if (averages == average.isEmpty()) {
            throw new TrainingException.WrongOption("--resume: " + file.path() + ": expected a file "
                    + (averages
                            ? "with an average of weights, got one without; leave out --ema"
                            : "without an average of weights, got one with decay " + ForeignText.plain(average)
                                    + "; give --ema " + ForeignText.plain(average)));
        }
    }

    private static boolean takes(String recipe, TrainingPlan plan) {
        return switch (plan.saving().recipes()) {
            case SAME -> plan.recipe().goesOnFrom(recipe);
            case SAME_WEIGHTS -> plan.recipe().hasWeightsOf(recipe);
        };
    }

    /** Returns which sequences the data gave, after a look whether the numbers of the file fit together. */
    private static DataPosition checked(SafetensorsFile file, long steps, Wording wording) {
        long updates = number(file, UPDATES, wording);
        long skipped = file.entries().containsKey(SKIPPED) ? count(file, SKIPPED, wording) : 0;
        if (updates + skipped != steps) {
            throw new TrainingException(wording.resume() + ": " + file.path() + ": expected " + UPDATES
                    + (skipped == 0 ? "" : " and " + SKIPPED) + " to make " + steps + ", the number of " + STEPS
                    + ", got "
                    + updates + (skipped == 0 ? "" : " and " + skipped));
        }
        long sequences = number(file, SEQUENCES, wording);
        long most = steps * Integer.MAX_VALUE; // of one token each
        if (sequences > most) {
            throw new TrainingException(wording.resume() + ": " + file.path() + ": expected " + SEQUENCES
                    + " of at most " + most + ", which " + steps + " steps can take from the data, got " + sequences);
        }
        long ahead = number(file, TAKEN_AHEAD, wording);
        if (ahead > MOST_TAKEN_AHEAD) {
            throw new TrainingException(wording.resume() + ": " + file.path() + ": expected " + TAKEN_AHEAD
                    + " of at most " + MOST_TAKEN_AHEAD + ", the bits of " + SequencePacker.LOOK_AHEAD
                    + " sequences, got " + ahead);
        }
        return new DataPosition(sequences, ahead);
    }

    /** Returns an INT32 [1]. */
    private static long count(SafetensorsFile file, String name, Wording wording) {
        SafetensorsEntry entry = file.entry(name);
        if (entry.dtype() != DType.INT32 || !entry.shape().equals(Shape.of(1))) {
            throw new TrainingException(wording.resume() + ": " + file.path() + ": expected one INT32, got " + entry);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
            entry.copyTo(value);
            return value.get(ValueLayout.JAVA_INT, 0);
        }
    }

    private static long number(SafetensorsFile file, String name, Wording wording) {
        SafetensorsEntry entry = file.entry(name);
        if (entry.dtype() != DType.INT64 || !entry.shape().equals(Shape.of())) {
            throw new TrainingException(wording.resume() + ": " + file.path() + ": expected a number, got " + entry);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ValueLayout.JAVA_LONG);
            entry.copyTo(value);
            long number = value.get(ValueLayout.JAVA_LONG, 0);
            if (number < 0) {
                throw new TrainingException(
                        wording.resume() + ": " + file.path() + ": expected " + name + " from 0 on, got " + number);
            }
            return number;
        }
    }

    /**
     * Loads what the run begins with.
     *
     * @param file null for nothing
     * @return what was not loaded of another recipe, and of this one
     * @throws TrainingException when the file does not fit the model
     */
    RecipeDifferences load(Training model, @Nullable Path file, Wording wording) {
        if (file == null) {
            return RecipeDifferences.NONE;
        }
        try {
            if (otherRecipe != null) {
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

    /** Returns whether nothing is left to do of {@code plan}. */
    boolean isWhole(TrainingPlan plan) {
        return steps >= plan.steps();
    }

    /** Leaves out the sequences before the first one that the earlier run has left, unless {@code stopped} says so earlier. */
    void skip(TokenSequences sequences, BooleanSupplier stopped) {
        for (long i = 0; i < data.next() && !stopped.getAsBoolean() && sequences.advance(); i++) {
            // Advancing is all.
        }
    }
}
