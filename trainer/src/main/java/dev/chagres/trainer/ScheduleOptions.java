package dev.chagres.trainer;

import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.optim.LearningRateSchedule.Decay;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.StringJoiner;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/**
 * Options of {@code train} that say the learning rate, and what a saved file says of them. A run may go on at other rates, which is told: what
 * was learned is still there, unlike in a run of another model or recipe.
 */
final class ScheduleOptions {
    private static final String RATE = "learning-rate";
    private static final String WARM_UP = "warm-up-steps";
    private static final String DECAY = "decay";
    private static final String STEPS = "steps";
    private static final float LAST_RATE = 0.1f;

    @Option(
            names = "--learning-rate",
            paramLabel = "RATE",
            description = "highest learning rate (default: 4e-4, tiny: 4e-3, --text: 2e-5)")
    private @Nullable Float learningRate;

    @Option(
            names = "--warm-up-steps",
            paramLabel = "N",
            description = "steps over which the rate rises to its highest (default: a tenth of the steps)")
    private @Nullable Integer warmUpSteps;

    @Option(
            names = "--decay",
            converter = OptionWords.OfDecay.class,
            paramLabel = "constant|linear|cosine",
            description =
                    "how the rate falls from then on, linear and cosine to a tenth (default: linear, schedule-free:"
                            + " constant)")
    private @Nullable Decay decay;

    /**
     * Checks what does not depend on the platform.
     *
     * @param steps of the run
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check(int steps) {
        if (learningRate != null && !(learningRate > 0 && learningRate < Float.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("--learning-rate: expected a positive number, got " + learningRate);
        }
        if (warmUpSteps != null && (warmUpSteps < 0 || warmUpSteps > steps)) {
            throw new IllegalArgumentException(
                    "--warm-up-steps: expected 0 to " + steps + ", the number of steps, got " + warmUpSteps);
        }
    }

    /** Returns the schedule, with the highest rate and the decay that are usual where none was given. */
    LearningRateSchedule of(int steps, float usualRate, Decay usualDecay) {
        return new LearningRateSchedule(
                learningRate != null ? learningRate : usualRate,
                warmUpSteps != null ? warmUpSteps : steps / 10,
                steps,
                decay != null ? decay : usualDecay,
                LAST_RATE);
    }

    /** Returns the options that were not given, and where their values come from. */
    Map<String, String> defaults() {
        Map<String, String> defaults = new HashMap<>();
        if (learningRate == null) {
            defaults.put(RATE, "the default");
        }
        if (warmUpSteps == null) {
            defaults.put(WARM_UP, "the default, a tenth of --steps");
        }
        if (decay == null) {
            defaults.put(DECAY, "the default");
        }
        return defaults;
    }

    /** Returns the schedule as options say it, by their names. */
    static Map<String, String> description(LearningRateSchedule schedule) {
        Map<String, String> options = new LinkedHashMap<>();
        options.put(RATE, Float.toString(schedule.peak()));
        options.put(WARM_UP, Integer.toString(schedule.warmUpSteps()));
        options.put(DECAY, schedule.decay().name().toLowerCase(Locale.ROOT));
        options.put(STEPS, Integer.toString(schedule.totalSteps()));
        return options;
    }

    /**
     * Returns in one line how the schedule differs from that of the file which a run begins with; null where rates go on as they
     * would have, where the run begins anew, and of a file that says nothing of it.
     *
     * @param before the steps that were made
     * @throws TrainingException when the file cannot be read
     */
    static @Nullable String difference(TrainingPlan plan, SavedRun before) {
        Path path = plan.saving().resumed();
        if (path == null) {
            return null;
        }
        Map<String, String> saved;
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            saved = file.metadata();
        } catch (SafetensorsException e) {
            throw new TrainingException("--resume: " + e.getMessage(), e);
        }
        String options = difference(saved, plan.schedule(), plan.saving().defaults(), before.steps());
        return options.isEmpty()
                ? null
                : "--resume: " + path
                        + " was saved with another schedule, so the learning rate is another one from here on: "
                        + options;
    }

    /** Returns the options that change the rate of a step after {@code done}, with both values. */
    private static String difference(
            Map<String, String> saved, LearningRateSchedule schedule, Map<String, String> defaults, int done) {
        Map<String, String> own = description(schedule);
        boolean falls = schedule.decay() != Decay.CONSTANT || !Objects.equals(own.get(DECAY), saved.get(DECAY));
        var options = new StringJoiner(", ");
        own.forEach((name, value) -> {
            String old = saved.get(name);
            boolean counts = falls
                    || switch (name) {
                        case STEPS -> false;
                        case WARM_UP -> !isOver(value, done) || !isOver(old, done);
                        default -> true;
                    };
            if (counts && old != null && !old.equals(value)) {
                String origin = defaults.containsKey(name) ? " (" + defaults.get(name) + ")" : "";
                options.add("--" + name + " " + value + origin + ", was " + old);
            }
        });
        return options.toString();
    }

    /** Returns whether a warm-up is, of so many steps; false where the file has no number there. */
    private static boolean isOver(@Nullable String steps, int done) {
        try {
            return steps != null && Integer.parseInt(steps) <= done;
        } catch (NumberFormatException e) {
            return false;
        }
    }
}
