package dev.chagres.samples.train;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * The line of a progress bar, fitted to a width: where that is short, the last facts go first, and the bar stays.
 *
 * <p>Threading: immutable.
 *
 * @param step steps done
 * @param steps steps in all
 * @param elapsed time that the steps took
 * @param facts what is known of the last steps, the most telling first
 */
record BarLine(long step, long steps, Duration elapsed, List<String> facts) {
    private static final int LEAST_CELLS = 10;
    private static final int MOST_CELLS = 40;
    private static final String HEAD = "train [";

    /** Copies the facts. */
    BarLine {
        facts = List.copyOf(facts);
    }

    /** Returns the line, of at most {@code width} characters unless bar and count alone take more. */
    String fit(int width) {
        var words = new ArrayList<String>();
        words.add("] " + step + "/" + steps);
        if (step > 0) {
            words.add(left(elapsed.toMillis() / 1e3 / step * (steps - step)));
        }
        words.addAll(facts);
        String tail = String.join("  ", words);
        while (words.size() > 1 && HEAD.length() + LEAST_CELLS + tail.length() > width) {
            words.removeLast();
            tail = String.join("  ", words);
        }
        int cells = Math.clamp(width - HEAD.length() - tail.length(), LEAST_CELLS, MOST_CELLS);
        int full = (int) (cells * step / Math.max(1, steps));
        return HEAD + "=".repeat(full) + (full < cells ? ">" + " ".repeat(cells - full - 1) : "") + tail;
    }

    /** How long the remaining steps will take. */
    static String left(double seconds) {
        long whole = Math.round(seconds);
        return String.format(Locale.ROOT, "left %d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    }
}
