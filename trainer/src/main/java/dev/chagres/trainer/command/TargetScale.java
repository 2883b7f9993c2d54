package dev.chagres.trainer.command;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.commons.math3.stat.descriptive.moment.Mean;
import org.apache.commons.math3.stat.descriptive.moment.StandardDeviation;

/**
 * Standardised labels: {@code z = (y - mean) / deviation}. A saved model predicts z; the file {@value #FILE} of its folder has the two numbers.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code StandardScaler} of scikit-learn.
 *
 * @param deviation above 0: the square root of the mean squared difference
 */
public record TargetScale(double mean, double deviation) {
    /** Where a saved folder has the numbers. */
    public static final String FILE = "targets.json";

    /** Leaves labels as they are. */
    public static final TargetScale PLAIN = new TargetScale(0, 1);

    private static final String MEAN = "mean";
    private static final String DEVIATION = "standard_deviation";

    /**
     * Returns that of labels.
     *
     * @throws RuntimeException that tells in one line that they are all the same
     */
    public static TargetScale of(double[] labels) {
        double deviation = new StandardDeviation(false).evaluate(labels);
        if (!(deviation > 0) || Double.isInfinite(deviation)) {
            throw new CommandFailure(
                    "--standardize: expected labels that differ, and whose spread is finite, got a standard deviation"
                            + " of "
                            + deviation);
        }
        return new TargetScale(new Mean().evaluate(labels), deviation);
    }

    /**
     * Returns that of a saved model; {@link #PLAIN} where its folder has none.
     *
     * @throws RuntimeException that tells in one line that the file has something else
     */
    public static TargetScale read(Path folder) {
        Path file = folder.resolve(FILE);
        if (Files.notExists(file)) {
            return PLAIN;
        }
        try {
            Map<?, ?> fields = JSON.std.anyFrom(Files.readString(file)) instanceof Map<?, ?> object ? object : Map.of();
            var values = List.of(MEAN, DEVIATION).stream()
                    .map(name -> fields.get(name) instanceof Number number ? number.doubleValue() : Double.NaN)
                    .toList();
            if (Double.isFinite(values.get(0)) && Double.isFinite(values.get(1)) && values.get(1) > 0) {
                return new TargetScale(values.get(0), values.get(1));
            }
        } catch (IOException failure) {
            throw new CommandFailure("--model: " + file + ": expected JSON, got something else", failure);
        }
        throw new CommandFailure("--model: " + file + ": expected the numbers mean and standard_deviation, above 0");
    }

    /** Writes a folder and, where labels are scaled, the file in it. All appears at once: a model without its scale would tell other numbers. */
    public void save(Path folder, Consumer<Path> save) {
        if (equals(PLAIN)) {
            save.accept(folder);
            return;
        }
        Path whole = folder.resolveSibling(folder.getFileName() + ".part");
        try {
            save.accept(whole);
            write(whole);
            Files.move(whole, folder, StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private void write(Path folder) throws IOException {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put(MEAN, mean);
        fields.put(DEVIATION, deviation);
        Files.writeString(folder.resolve(FILE), JSON.std.asString(fields) + "\n");
    }

    /** Returns the number that a model learns for a label. */
    public double scaled(double label) {
        return (label - mean) / deviation;
    }

    /** Returns the label that a number of a model stands for. */
    public double plain(double z) {
        return z * deviation + mean;
    }
}
