package dev.chagres.drawn;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** How many layers that held had each option. */
final class OptionCounts {
    private final List<DrawnOption> options = DrawnOption.all();
    private final Map<String, Integer> counts = new LinkedHashMap<>();
    private int layers;

    OptionCounts() {
        options.forEach(option -> counts.put(option.name(), 0));
    }

    /** Counts a layer that held; {@code explanation} is what it says that it computes by. */
    void add(DrawnLayer drawn, String explanation) {
        layers++;
        for (DrawnOption option : options) {
            if (option.has().test(drawn, explanation)) {
                counts.merge(option.name(), 1, Integer::sum);
            }
        }
    }

    int layers() {
        return layers;
    }

    /** Refuses when an option was drawn fewer times than {@code least}. */
    void require(int least) {
        List<String> seldom = counts.entrySet().stream()
                .filter(entry -> entry.getValue() < least)
                .map(entry -> entry.getKey() + ": " + entry.getValue())
                .toList();
        if (!seldom.isEmpty()) {
            throw new AssertionError("options that are drawn fewer than " + least + " times: " + seldom);
        }
    }

    @Override
    public String toString() {
        StringBuilder text = new StringBuilder(layers + " layers held; of them had\n");
        counts.forEach((name, count) ->
                text.append("  ").append(name).append(": ").append(count).append('\n'));
        return text.toString();
    }
}
