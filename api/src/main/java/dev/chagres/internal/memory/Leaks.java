package dev.chagres.internal.memory;

import dev.chagres.bindings.ForeignText;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * Remembers open resources and where they were made: {@code -Dchagres.leaks=off|sample|all}.
 *
 * <p>{@code off} (the default) costs nothing, {@code sample} follows one resource in 128, {@code all} every one. What is
 * still open when the JVM ends is written to the error stream; tests ask {@link #open()} and fail.
 *
 * <p>Threading: thread-safe.
 */
public final class Leaks {
    private static final int SAMPLE_EVERY = 128;
    private static final int UNKNOWN_LEVEL = -1;
    private static final String LEVEL = System.getProperty("chagres.leaks", "off");
    private static final int EVERY = interval(LEVEL);
    private static final AtomicLong CREATED = new AtomicLong();
    private static final Set<Trace> OPEN = ConcurrentHashMap.newKeySet();

    static {
        if (EVERY > 0) {
            Runtime.getRuntime().addShutdownHook(new Thread(Leaks::report, "chagres-leak-report"));
        }
    }

    private Leaks() {}

    /** Where a resource was made. */
    public static final class Trace extends Throwable {
        private static final long serialVersionUID = 1L;

        private final transient @Nullable BooleanSupplier holds;

        private Trace(String what, @Nullable BooleanSupplier holds) {
            super(what);
            this.holds = holds;
        }

        private boolean holdsNothing() {
            return holds != null && !holds.getAsBoolean();
        }
    }

    /**
     * Notes that {@code what} was opened; the result goes to {@link #closed}. Null when this one is not followed.
     *
     * @throws IllegalArgumentException when the property has another value
     */
    public static @Nullable Trace opened(String what) {
        return opened(what, null);
    }

    /**
     * Notes that {@code what} was opened, as {@link #opened(String)} does. It counts as closed, too, when it holds nothing any more, since
     * others have closed all that it held.
     *
     * @param holds may be called from any thread; null: until it is closed
     * @throws IllegalArgumentException when the property has another value
     */
    public static @Nullable Trace opened(String what, @Nullable BooleanSupplier holds) {
        if (EVERY == UNKNOWN_LEVEL) {
            throw new IllegalArgumentException(
                    "-Dchagres.leaks: expected off, sample or all, got " + ForeignText.quoted(LEVEL));
        }
        if (EVERY == 0 || CREATED.getAndIncrement() % EVERY != 0) {
            return null;
        }
        Trace trace = new Trace(what, holds);
        OPEN.add(trace);
        return trace;
    }

    /** Notes that the resource behind {@code trace} was closed. */
    public static void closed(@Nullable Trace trace) {
        if (trace != null) {
            OPEN.remove(trace);
        }
    }

    /** Returns the followed resources that are open now, with the stack that made each. */
    public static List<Trace> open() {
        OPEN.removeIf(Trace::holdsNothing);
        return new ArrayList<>(OPEN);
    }

    /** Writes to the error stream: loggers may have shut down already. */
    private static void report() {
        for (Trace trace : open()) {
            StringBuilder text = new StringBuilder("never closed: " + trace.getMessage() + ", made here\n");
            for (StackTraceElement frame : trace.getStackTrace()) {
                text.append("\tat ").append(frame).append('\n');
            }
            System.err.print(text);
        }
    }

    private static int interval(String level) {
        return switch (level.toLowerCase(Locale.ROOT)) {
            case "off" -> 0;
            case "sample" -> SAMPLE_EVERY;
            case "all" -> 1;
            default -> UNKNOWN_LEVEL;
        };
    }
}
