package dev.chagres.besidete;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** How many cases had each option. */
final class OptionTally {
    private final Map<String, Integer> counts = new TreeMap<>();
    private int cases;

    void add(List<String> options) {
        cases++;
        options.forEach(option -> counts.merge(option, 1, Integer::sum));
    }

    @Override
    public String toString() {
        StringBuilder text = new StringBuilder(cases + " cases; of them had\n");
        counts.forEach((name, count) ->
                text.append("  ").append(name).append(": ").append(count).append('\n'));
        return text.toString();
    }
}
