package dev.chagres.io;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * How a file differs from what was expected of it.
 *
 * @param missing expected, not in the file
 * @param unexpected in the file, not expected
 * @param different in both, of another type or shape
 */
record Differences(List<String> missing, List<String> unexpected, List<String> different) {

    static Differences between(List<TensorSpec> expected, Map<String, SafetensorsEntry> entries) {
        Differences differences = new Differences(new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
        Set<String> names = new HashSet<>();
        for (TensorSpec spec : expected) {
            if (!names.add(spec.name())) {
                throw new IllegalArgumentException(
                        "expected: each name once, got " + Names.quoted(spec.name()) + " twice");
            }
            SafetensorsEntry entry = entries.get(spec.name());
            if (entry == null) {
                differences.missing.add(described(spec));
            } else if (!entry.fits(spec)) {
                differences.different.add("expected " + described(spec) + ", got " + entry);
            }
        }
        entries.values().stream()
                .filter(entry -> !names.contains(entry.name()))
                .forEach(entry -> differences.unexpected.add(entry.toString()));
        return differences;
    }

    private static String described(TensorSpec spec) {
        return Names.quoted(spec.name()) + " "
                + SafetensorsEntry.described(
                        SafetensorsType.of(spec.dtype()), spec.shape().sizes());
    }

    boolean isEmpty() {
        return missing.isEmpty() && unexpected.isEmpty() && different.isEmpty();
    }

    /** Returns the numbers of differences, then each on a line of its own. */
    String text() {
        StringBuilder text = new StringBuilder("the file holds other tensors than expected: ")
                .append(missing.size())
                .append(" missing, ")
                .append(unexpected.size())
                .append(" unexpected, ")
                .append(different.size())
                .append(" of another type or shape; nothing was loaded");
        missing.forEach(line -> text.append("\n  missing: ").append(line));
        unexpected.forEach(line -> text.append("\n  unexpected: ").append(line));
        different.forEach(line -> text.append("\n  different: ").append(line));
        return text.toString();
    }
}
