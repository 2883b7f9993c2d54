package dev.chagres.trainer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * The line of a progress bar, fitted to a width. Where that is short the last facts go first; then the bar goes, and the most
 * telling fact, the loss, stays; then the time that is left.
 *
 * <p>Threading: immutable.
 *
 * @param begun steps done before this run
 * @param step steps done
 * @param steps steps in all
 * @param elapsed time that the steps of this run took
 * @param facts what is known of the last steps, the most telling first
 */
record BarLine(long begun, long step, long steps, Duration elapsed, List<String> facts) {
    private static final int LEAST_CELLS = 10;
    private static final int MOST_CELLS = 40;
    private static final String NAME = "train ";
    private static final String GAP = "  ";

    /** Copies the facts. */
    BarLine {
        facts = List.copyOf(facts);
    }

    /** Returns the line, of at most {@code width} characters unless the count of steps alone takes more. */
    String fit(int width) {
        String count = step + "/" + steps;
        var words = new ArrayList<String>();
        words.add(count);
        if (step > begun) {
            words.add(left(elapsed.toMillis() / 1e3 / (step - begun) * (steps - step)));
        }
        int least = words.size() + Math.min(1, facts.size());
        words.addAll(facts);
        for (; words.size() >= least; words.removeLast()) {
            int cells = width - NAME.length() - 3 - String.join(GAP, words).length();
            if (cells >= LEAST_CELLS) {
                return NAME + "[" + bar(Math.min(cells, MOST_CELLS)) + "] " + String.join(GAP, words);
            }
        }
        return withoutBar(width, count, words);
    }

    private String withoutBar(int width, String count, List<String> countAndLeft) {
        String loss = facts.isEmpty() ? "" : GAP + facts.getFirst();
        String left = countAndLeft.size() > 1 ? GAP + countAndLeft.get(1) : "";
        for (String line : List.of(NAME + count + loss + left, NAME + count + loss, count + loss, loss.strip())) {
            if (!line.isEmpty() && line.length() <= width) {
                return line;
            }
        }
        return count;
    }

    private String bar(int cells) {
        int full = (int) (cells * step / Math.max(1, steps));
        return "=".repeat(full) + (full < cells ? ">" + " ".repeat(cells - full - 1) : "");
    }

    /** How long the remaining steps will take. */
    static String left(double seconds) {
        long whole = Math.round(seconds);
        return String.format(Locale.ROOT, "left %d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    }
}
