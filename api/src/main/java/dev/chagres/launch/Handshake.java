package dev.chagres.launch;

import dev.chagres.bindings.ForeignText;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A rank's greeting: which run it belongs to, and where it listens.
 *
 * <p>Threading: immutable.
 *
 * @param environment of this rank
 * @param build of the library, the same on all ranks
 * @param what the ranks do, the same on all
 */
record Handshake(RankEnvironment environment, String build, String what) {
    /** Incremented when messages change. */
    private static final String VERSION = "chagres store 3";

    private static final int LINES = 5;
    private static final int PORT = 3;

    byte[] hello(int port) {
        return (VERSION + "\n" + build + "\n" + environment.count() + "\n" + port + "\n" + what)
                .getBytes(StandardCharsets.UTF_8);
    }

    /** Returns where a rank of this run listens. */
    static int port(String hello) {
        return Integer.parseInt(hello.split("\n", LINES)[PORT]);
    }

    /** Returns why a rank does not belong to this run, or null. */
    @Nullable
    String wrong(int rank, String hello) {
        String[] lines = hello.split("\n", LINES);
        if (lines.length != LINES || !lines[0].equals(VERSION)) {
            return "rank " + rank + " is of another version of Chagres: expected \"" + VERSION + "\", got "
                    + ForeignText.quoted(lines[0]);
        }
        if (!lines[1].equals(build)) {
            return "rank " + rank + " runs another build of Chagres than rank 0: expected " + ForeignText.quoted(build)
                    + ", got " + ForeignText.quoted(lines[1]) + "; start all ranks with the same jars and libraries";
        }
        if (!lines[2].equals(Integer.toString(environment.count()))) {
            return "rank " + rank + " is one of " + ForeignText.plain(lines[2]) + " ranks: expected "
                    + environment.count() + ", as rank 0 says";
        }
        return isPort(lines[PORT])
                ? null
                : "rank " + rank + " listens nowhere: expected a port from 1 to " + RankEnvironment.LAST_PORT + ", got "
                        + ForeignText.quoted(lines[PORT]);
    }

    private static boolean isPort(String text) {
        try {
            int port = Integer.parseInt(text);
            return port >= 1 && port <= RankEnvironment.LAST_PORT;
        } catch (NumberFormatException _) {
            return false;
        }
    }

    /** Returns how a rank's purpose differs, or null. */
    @Nullable
    String otherwise(int rank, String hello) {
        String other = hello.split("\n", LINES)[LINES - 1];
        return other.equals(what)
                ? null
                : "rank " + rank + " does something else than rank 0: expected " + differing(what, other) + ", got "
                        + differing(other, what);
    }

    /** Returns the lines of {@code text} that differ from those of {@code other}; all of it if the numbers of lines differ. */
    private static String differing(String text, String other) {
        String[] lines = text.split("\n", -1);
        String[] others = other.split("\n", -1);
        List<String> different = new ArrayList<>();
        for (int i = 0; i < lines.length && lines.length == others.length; i++) {
            if (!lines[i].equals(others[i])) {
                different.add(ForeignText.quoted(lines[i]));
            }
        }
        return different.isEmpty() ? ForeignText.quoted(text) : String.join(" and ", different);
    }
}
