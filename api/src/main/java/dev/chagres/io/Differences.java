package dev.chagres.io;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * How a file differs from what was expected of it.
 *
 * @param missing expected, not in the file
 * @param unexpected in the file, not expected
 * @param different in both, of another type or shape
 * @param hint what to do where what is kept beside a weight is on one side alone; else empty
 */
record Differences(List<String> missing, List<String> unexpected, List<String> different, String hint) {
    private static final String WEIGHTS_ALONE = "; to load weights alone, ask for weightState()";

    static Differences between(
            List<TensorSpec> expected, Map<String, SafetensorsEntry> entries, Predicate<SafetensorsEntry> leftOut) {
        Differences differences = new Differences(
                new ArrayList<>(), new ArrayList<>(), new ArrayList<>(), hint(expected, entries, leftOut));
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
                .filter(entry -> !names.contains(entry.name()) && !leftOut.test(entry))
                .forEach(entry -> differences.unexpected.add(entry.toString()));
        return differences;
    }

    private static String hint(
            List<TensorSpec> expected, Map<String, SafetensorsEntry> entries, Predicate<SafetensorsEntry> leftOut) {
        Set<String> names = expected.stream().map(TensorSpec::name).collect(Collectors.toSet());
        Stream<String> missing = names.stream().filter(name -> !entries.containsKey(name));
        Stream<String> unexpected = entries.values().stream()
                .filter(entry -> !names.contains(entry.name()) && !leftOut.test(entry))
                .map(SafetensorsEntry::name);
        boolean beside = Stream.concat(missing, unexpected)
                .map(name -> name.substring(0, Math.max(0, name.lastIndexOf('.'))))
                .anyMatch(weight -> names.contains(weight) && entries.containsKey(weight));
        return beside ? WEIGHTS_ALONE : "";
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
                .append(" of another type or shape; nothing was loaded")
                .append(hint);
        missing.forEach(line -> text.append("\n  missing: ").append(line));
        unexpected.forEach(line -> text.append("\n  unexpected: ").append(line));
        different.forEach(line -> text.append("\n  different: ").append(line));
        return text.toString();
    }
}
