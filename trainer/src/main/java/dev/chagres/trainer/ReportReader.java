package dev.chagres.trainer;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.ForeignText;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What a report of {@code train --report} says of one run: its first line, and the loss of every step
 * under its number.
 *
 * <p>Threading: one thread at a time.
 *
 * @param model the size of the model
 * @param recipe in what precision its layers computed
 * @param ranks what trained it beside one rank, such as {@code " on 2 ranks (zero3)"}; empty for one rank
 * @param losses of its steps
 */
record ReportReader(String model, String recipe, String ranks, LossCurve losses) {
    /** A step of 10,000 ranks has about 2 million characters. */
    private static final int MAX_LINE = 1 << 22;

    /**
     * Reads a report.
     *
     * @throws TrainingException when there is no such file, or it is no report of a run with steps
     */
    static ReportReader read(Path file) {
        try (BufferedReader lines = Files.newBufferedReader(file)) {
            Map<String, Object> run = line(file, 1, Objects.requireNonNullElse(next(file, 1, lines), ""));
            var losses = new LossCurve();
            int number = 1;
            for (String text = next(file, 2, lines); text != null; text = next(file, number + 1, lines)) {
                Map<String, Object> step = line(file, ++number, text);
                if (!step.containsKey("evaluation") && !step.containsKey("data")) {
                    losses.add(stepNumber(file, number, step, losses), loss(file, number, step));
                }
            }
            if (losses.steps() == 0) {
                throw new TrainingException(ForeignText.plain(file) + ": has no step");
            }
            return new ReportReader(word(file, run, "model"), word(file, run, "recipe"), ranks(file, run), losses);
        } catch (NoSuchFileException e) {
            throw new TrainingException(ForeignText.plain(file) + ": there is no such file", e);
        } catch (CharacterCodingException e) {
            throw new TrainingException(
                    ForeignText.plain(file) + ": is no text; expected a report of train --report", e);
        } catch (IOException e) {
            String why = Files.isDirectory(file) ? "it is a directory" : e.toString();
            throw new TrainingException(ForeignText.plain(file) + ": cannot be read: " + ForeignText.plain(why), e);
        }
    }

    /** Returns the next line without its end, or null where there is none. */
    private static @Nullable String next(Path file, int number, BufferedReader lines) throws IOException {
        StringBuilder line = new StringBuilder();
        int character = lines.read();
        if (character < 0) {
            return null;
        }
        for (; character >= 0 && character != '\n'; character = lines.read()) {
            if (line.length() == MAX_LINE) {
                throw new TrainingException(notOne(
                        file, number, "is longer than " + MAX_LINE + " characters, more than a line of a report"));
            }
            line.append((char) character);
        }
        return line.toString();
    }

    private static Map<String, Object> line(Path file, int number, String text) {
        try {
            Map<String, Object> object = JSON.std.mapFrom(text);
            if (object != null) {
                return object;
            }
        } catch (IOException | RuntimeException e) {
            throw new TrainingException(notOne(file, number, "is no JSON object"), e);
        }
        throw new TrainingException(notOne(file, number, "is no JSON object"));
    }

    private static String word(Path file, Map<String, Object> run, String name) {
        if (run.get(name) instanceof String word && word.chars().noneMatch(Character::isISOControl)) {
            return ForeignText.plain(word);
        }
        throw new TrainingException(notOne(file, 1, "lacks \"" + name + "\""));
    }

    /** Returns what stands in names of runs on several ranks. */
    private static String ranks(Path file, Map<String, Object> run) {
        if (run.get("ranks") instanceof Integer count && count > 1) {
            return RunText.ranks(count, word(file, run, "strategy"));
        }
        return "";
    }

    /** Returns the number of the step, which is above that of the line before. */
    private static int stepNumber(Path file, int number, Map<String, Object> step, LossCurve before) {
        int least = before.steps() == 0 ? 1 : before.number(before.steps() - 1) + 1;
        if (step.get("step") instanceof Integer value) {
            if (value >= least) {
                return value;
            }
            throw new TrainingException(
                    notOne(file, number, "has step " + value + ", where " + least + " or more was to come"));
        }
        throw new TrainingException(notOne(file, number, "lacks \"step\""));
    }

    /** Returns the loss, NaN where the step was skipped. */
    private static double loss(Path file, int number, Map<String, Object> step) {
        if (step.containsKey("loss") && step.get("loss") == null) {
            return Double.NaN;
        }
        if (step.get("loss") instanceof Number loss) {
            double value = loss.doubleValue();
            return Double.isFinite(value) ? value : Double.NaN;
        }
        throw new TrainingException(notOne(file, number, "lacks \"loss\""));
    }

    private static String notOne(Path file, int number, String what) {
        return ForeignText.plain(file) + ", line " + number + ": " + what + "; expected a report of train --report";
    }
}
