package dev.chagres.trainer.command;

import java.io.PrintStream;
import java.util.Locale;
import java.util.function.Supplier;

/**
 * Tells every few seconds how far a command is: on a terminal in one line that is written again, elsewhere in lines.
 *
 * <p>Threading: one thread at a time.
 */
public final class ProgressLine implements AutoCloseable {
    private static final double SECONDS = 5;

    private final PrintStream err;
    private final String what;
    private final long total;
    private final boolean terminal;
    private final long began = System.nanoTime();
    private long told = began;
    private boolean shown;

    /**
     * Begins to count.
     *
     * @param what is counted, such as {@code proteins}
     * @param total how many there are
     */
    ProgressLine(PrintStream err, String what, long total) {
        this.err = err;
        this.what = what;
        this.total = total;
        terminal = System.console() != null && System.console().isTerminal();
    }

    /** Begins to tell of what has no known end. */
    public ProgressLine(PrintStream err) {
        this(err, "", 0);
    }

    /** Returns the seconds since the beginning. */
    double seconds() {
        return (System.nanoTime() - began) / 1e9;
    }

    /**
     * Takes what is done.
     *
     * @param done of the total
     * @param tokens that were computed since the beginning
     * @param share of the work that is done, and of it that which was there at the beginning
     */
    void at(long done, long tokens, double share, double before) {
        at(() -> {
            long left = share > before ? Math.round(seconds() * (1 - share) / (share - before)) : 0;
            return String.format(
                    Locale.ROOT,
                    "%,d of %,d %s, %,.0f tokens/s, left %d:%02d:%02d",
                    done,
                    total,
                    what,
                    tokens / seconds(),
                    left / 3600,
                    left / 60 % 60,
                    left % 60);
        });
    }

    /** Shows a text, unless one was shown just before. */
    public void at(Supplier<String> words) {
        long now = System.nanoTime();
        if ((now - told) / 1e9 < (terminal ? 0.5 : SECONDS)) {
            return;
        }
        told = now;
        String text = words.get();
        if (terminal) {
            err.print("\r\u001b[K" + text);
            err.flush();
            shown = true;
        } else {
            err.println(text);
        }
    }

    /** Wipes the line of a terminal. */
    @Override
    public void close() {
        if (shown) {
            err.print("\r\u001b[K");
            err.flush();
        }
    }
}
