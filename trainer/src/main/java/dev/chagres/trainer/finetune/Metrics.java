package dev.chagres.trainer.finetune;

import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * How well predictions fit labels.
 *
 * <p>Threading: immutable.
 *
 * @param values of the metrics of a task, in the order of {@link Metric}
 */
record Metrics(Map<Metric, Double> values) {
    Metrics {
        values = Collections.unmodifiableMap(new TreeMap<>(values));
    }

    /** Returns a metric's value; NaN where it has none. */
    double of(Metric metric) {
        return values.getOrDefault(metric, Double.NaN);
    }

    @Override
    public String toString() {
        return values.entrySet().stream()
                .map(each -> String.format(Locale.ROOT, "%s %.4f", each.getKey().text(), each.getValue()))
                .collect(Collectors.joining(", "));
    }
}
