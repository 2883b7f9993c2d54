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
    private static final int SHOWN = 20;
    private static final String WEIGHTS_ALONE = "; to load weights alone, ask for weightState()";
    private static final String NOTHING_BESIDE =
            "; the file has all weights, but lacks what was asked for beside weightState(): load weightState() alone; where"
                    + " scales are missing, find them by Pass.calibrate, or load them from the file of a run";

    static Differences between(
            List<TensorSpec> expected,
            Map<String, SafetensorsEntry> entries,
            Predicate<SafetensorsEntry> leftOut,
            Set<String> weightsAlone) {
        Set<String> names = names(expected);
        List<SafetensorsEntry> others = entries.values().stream()
                .filter(entry -> !names.contains(entry.name()) && !leftOut.test(entry))
                .toList();
        List<String> missing = new ArrayList<>();
        List<String> different = new ArrayList<>();
        for (TensorSpec spec : expected) {
            SafetensorsEntry entry = entries.get(spec.name());
            if (entry == null) {
                missing.add(described(spec));
            } else if (!entry.fits(spec)) {
                different.add("expected " + described(spec) + ", got " + entry);
            }
        }
        String hint = weightsAlone.isEmpty()
                ? hintOfRun(names, entries, others)
                : hintOfWeights(names, entries, others, weightsAlone);
        List<String> unexpected = (weightsAlone.isEmpty() ? others : withoutKept(others))
                .stream().map(SafetensorsEntry::toString).toList();
        return new Differences(missing, unexpected, different, hint);
    }

    private static Set<String> names(List<TensorSpec> expected) {
        Set<String> names = new HashSet<>();
        for (TensorSpec spec : expected) {
            if (!names.add(spec.name())) {
                throw new IllegalArgumentException(
                        "expected: each name once, got " + Names.quoted(spec.name()) + " twice");
            }
        }
        return names;
    }

    /** Leaves out what is kept for a tensor that is listed itself, such as an optimizer's moments. */
    private static List<SafetensorsEntry> withoutKept(List<SafetensorsEntry> others) {
        Set<String> listed = others.stream().map(SafetensorsEntry::name).collect(Collectors.toSet());
        return others.stream()
                .filter(entry -> !listed.contains(owner(entry.name())))
                .toList();
    }

    private static String hintOfRun(
            Set<String> names, Map<String, SafetensorsEntry> entries, List<SafetensorsEntry> others) {
        Stream<String> missing = names.stream().filter(name -> !entries.containsKey(name));
        boolean beside = Stream.concat(missing, others.stream().map(SafetensorsEntry::name))
                .map(Differences::owner)
                .anyMatch(weight -> names.contains(weight) && entries.containsKey(weight));
        return beside ? WEIGHTS_ALONE : "";
    }

    private static String hintOfWeights(
            Set<String> names,
            Map<String, SafetensorsEntry> entries,
            List<SafetensorsEntry> others,
            Set<String> weightsAlone) {
        List<String> missing =
                names.stream().filter(name -> !entries.containsKey(name)).toList();
        boolean hasWeights = missing.stream().noneMatch(weightsAlone::contains);
        return !missing.isEmpty() && hasWeights && others.isEmpty() ? NOTHING_BESIDE : "";
    }

    /** Returns the name of the tensor for which one of this name may be kept. */
    private static String owner(String name) {
        return name.substring(0, Math.max(0, name.lastIndexOf('.')));
    }

    private static String described(TensorSpec spec) {
        return Names.quoted(spec.name()) + " "
                + SafetensorsEntry.described(
                        SafetensorsType.of(spec.dtype()), spec.shape().sizes());
    }

    boolean isEmpty() {
        return missing.isEmpty() && unexpected.isEmpty() && different.isEmpty();
    }

    /** Returns the numbers of differences, then the first of each kind, each on a line of its own. */
    String text() {
        StringBuilder text = new StringBuilder("the file holds other tensors than expected: ")
                .append(missing.size())
                .append(" missing, ")
                .append(unexpected.size())
                .append(" unexpected, ")
                .append(different.size())
                .append(" of another type or shape; nothing was loaded")
                .append(hint);
        append(text, "missing", missing);
        append(text, "unexpected", unexpected);
        append(text, "different", different);
        return text.toString();
    }

    private static void append(StringBuilder text, String kind, List<String> lines) {
        String begin = "\n  " + kind + ": ";
        lines.stream().limit(SHOWN).forEach(line -> text.append(begin).append(line));
        if (lines.size() > SHOWN) {
            text.append(begin).append(lines.size() - SHOWN).append(" more");
        }
    }
}
