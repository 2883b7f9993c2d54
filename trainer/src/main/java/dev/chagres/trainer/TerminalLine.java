package dev.chagres.trainer;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import me.tongfei.progressbar.ConsoleProgressBarConsumer;

/**
 * A line of a terminal that is drawn again and again in place.
 *
 * <p>What a shorter text leaves of a longer one is wiped. When the window has become narrower, most terminals have broken the
 * text into several rows: all of them are wiped, too, except on the few terminals that cut it off instead, where the rows above
 * belong to others.
 *
 * <p>Threading: one thread at a time.
 */
class TerminalLine extends ConsoleProgressBarConsumer {
    private static final String UP = "\u001b[%dA";
    private static final String WIPE_BELOW = "\u001b[J";

    private final PrintStream out;
    private final boolean breaksLines;
    private int drawn;

    /**
     * Draws on a terminal.
     *
     * @param environment variables that tell which terminal it is
     */
    TerminalLine(PrintStream out, Map<String, String> environment) {
        super(out);
        this.out = out;
        breaksLines = breaksLines(environment);
    }

    /** Returns whether this process's standard error is a terminal. {@link System#console()} tells of the other two streams. */
    static boolean isErrorStream() {
        try {
            String target = Files.readSymbolicLink(Path.of("/proc/self/fd/2")).toString();
            return target.startsWith("/dev/pts/") || target.startsWith("/dev/tty") || target.equals("/dev/console");
        } catch (IOException e) {
            return false;
        }
    }

    /** Linux's own console, xterm and GNU Screen cut off what a narrower window has no room for. */
    private static boolean breaksLines(Map<String, String> environment) {
        return !environment.getOrDefault("TERM", "").equals("linux")
                && !environment.containsKey("XTERM_VERSION")
                && !environment.containsKey("STY");
    }

    @Override
    public void accept(String text) {
        int width = Math.max(1, getMaxRenderedLength());
        String line = text.substring(0, Math.min(text.length(), width));
        // One column more than a line may have is the window's.
        int rows = breaksLines ? Math.max(1, (drawn + width) / (width + 1)) : 1;
        out.print((rows > 1 ? String.format(UP, rows - 1) : "") + "\r" + WIPE_BELOW + line);
        out.flush();
        drawn = line.length();
    }
}
