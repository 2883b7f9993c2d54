package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import java.util.ArrayList;
import java.util.Comparator;
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
 * @param hint what to do if only one side has optimizer state or scales, or the file has keys and values apart; else empty
 */
record Differences(List<Line> missing, List<Line> unexpected, List<Line> different, String hint) {
    /** What a difference concerns, in the order of the text: weights first, since they identify a model. */
    private enum Part {
        WEIGHT,
        /** Moments, masters and numbers. */
        BESIDE_WEIGHTS,
        /** Scales and histories. */
        RECIPE;

        /** {@code all}: the names on both sides. */
        static Part of(String name, boolean isNumber, Set<String> all) {
            if (name.endsWith(".scale") || name.startsWith("quantizers.")) {
                return RECIPE;
            }
            return isNumber || all.contains(owner(name)) ? BESIDE_WEIGHTS : WEIGHT;
        }
    }

    /** A difference, as one line of text. */
    private record Line(Part part, String text) {}

    private static final int SHOWN = 20;
    private static final String KEY_VALUE = "key_value";
    private static final String WEIGHTS_ALONE = "; to load only weights, use weightState()";
    private static final String NOTHING_BESIDE =
            "; the file has all weights, but lacks other requested state: load only weightState(); if scales are"
                    + " missing, get them by Pass.calibrate, or load them from the file of a run";

    static Differences between(
            List<TensorSpec> expected,
            Map<String, SafetensorsEntry> entries,
            Predicate<SafetensorsEntry> leftOut,
            Set<String> weightsAlone) {
        Set<String> names = names(expected);
        List<SafetensorsEntry> others = entries.values().stream()
                .filter(entry -> !names.contains(entry.name()) && !leftOut.test(entry))
                .toList();
        Set<String> all = new HashSet<>(names);
        all.addAll(entries.keySet());
        List<Line> missing = new ArrayList<>();
        List<Line> different = new ArrayList<>();
        for (TensorSpec spec : expected) {
            SafetensorsEntry entry = entries.get(spec.name());
            Part part = Part.of(spec.name(), Safetensors.number(spec.name()).equals(spec), all);
            if (entry == null) {
                missing.add(new Line(part, described(spec)));
            } else if (!entry.fits(spec)) {
                different.add(new Line(part, "expected " + described(spec) + ", got " + entry));
            }
        }
        String hint = (weightsAlone.isEmpty()
                        ? hintOfRun(names, entries, others)
                        : hintOfWeights(names, entries, others, weightsAlone))
                + hintOfParts(expected, entries);
        List<Line> unexpected = (weightsAlone.isEmpty() ? others : withoutKept(others))
                .stream().map(entry -> unexpected(entry, all)).toList();
        return new Differences(missing, unexpected, different, hint);
    }

    private static Line unexpected(SafetensorsEntry entry, Set<String> all) {
        boolean isNumber = entry.fits(Safetensors.number(entry.name()));
        return new Line(Part.of(entry.name(), isNumber, all), entry.toString());
    }

    private static Set<String> names(List<TensorSpec> expected) {
        Set<String> names = new HashSet<>();
        for (TensorSpec spec : expected) {
            if (!names.add(spec.name())) {
                throw new IllegalArgumentException(
                        "expected: each name once, got " + ForeignText.quoted(spec.name()) + " twice");
            }
        }
        return names;
    }

    /** Leaves out tensors that belong to another listed one, such as its moments. */
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

    /** Tells what to do with a file that has keys and values of cross-attention as two tensors, as other programs do. */
    private static String hintOfParts(List<TensorSpec> expected, Map<String, SafetensorsEntry> entries) {
        for (TensorSpec spec : expected) {
            String joined = spec.name();
            int at = ("." + joined).lastIndexOf("." + KEY_VALUE + ".");
            if (at < 0 || entries.containsKey(joined)) {
                continue;
            }
            String rest = joined.substring(at + KEY_VALUE.length());
            String key = joined.substring(0, at) + "key" + rest;
            String value = joined.substring(0, at) + "value" + rest;
            if (entries.containsKey(key) && entries.containsKey(value)) {
                return "; keys and values of cross-attention are one tensor here: join each pair of the file, first the rows of "
                        + ForeignText.quoted(key) + " and then those of " + ForeignText.quoted(value) + ", to "
                        + ForeignText.quoted(joined);
            }
        }
        return "";
    }

    /** Returns the name of the weight that a tensor of this name may belong to. */
    private static String owner(String name) {
        return name.substring(0, Math.max(0, name.lastIndexOf('.')));
    }

    private static String described(TensorSpec spec) {
        return ForeignText.quoted(spec.name()) + " "
                + SafetensorsEntry.described(
                        SafetensorsType.of(spec.dtype()), spec.shape().sizes());
    }

    boolean isEmpty() {
        return missing.isEmpty() && unexpected.isEmpty() && different.isEmpty();
    }

    /** Returns the numbers of differences, then the first of each kind, each on a line of its own: weights first, what recipes keep last. */
    String text() {
        StringBuilder text = new StringBuilder("the file holds other tensors than expected: ")
                .append(missing.size())
                .append(" missing, ")
                .append(unexpected.size())
                .append(" unexpected, ")
                .append(different.size())
                .append(" of another type or shape; nothing was loaded")
                .append(hint);
        List<Line> firstMissing = first(missing);
        List<Line> firstDifferent = first(different);
        List<Line> firstUnexpected = first(unexpected);
        for (Part part : Part.values()) {
            append(text, "missing", part, firstMissing);
            append(text, "different", part, firstDifferent);
            append(text, "unexpected", part, firstUnexpected);
        }
        appendRest(text, "missing", missing);
        appendRest(text, "different", different);
        appendRest(text, "unexpected", unexpected);
        return text.toString();
    }

    private static List<Line> first(List<Line> lines) {
        return lines.stream()
                .sorted(Comparator.comparing(Line::part))
                .limit(SHOWN)
                .toList();
    }

    private static void append(StringBuilder text, String kind, Part part, List<Line> lines) {
        lines.stream()
                .filter(line -> line.part == part)
                .forEach(line -> text.append("\n  ").append(kind).append(": ").append(line.text));
    }

    private static void appendRest(StringBuilder text, String kind, List<Line> lines) {
        if (lines.size() > SHOWN) {
            text.append("\n  ")
                    .append(kind)
                    .append(": ")
                    .append(lines.size() - SHOWN)
                    .append(" more");
        }
    }
}
