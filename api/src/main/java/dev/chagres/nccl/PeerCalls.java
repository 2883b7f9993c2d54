package dev.chagres.nccl;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * The announced calls of ranks in other processes, until this one has compared them.
 *
 * <p>Threading: thread-safe.
 */
final class PeerCalls {
    private static final char SEPARATOR = ':';

    private final Monitor monitor = new Monitor();
    private final Map<String, Map<Integer, String>> heard = new HashMap<>();
    private volatile @Nullable BiConsumer<List<Integer>, String> telling;

    /** Sets the function that sends this rank's announcements to other processes. */
    void tellThrough(BiConsumer<List<Integer>, String> told) {
        telling = told;
    }

    /** Returns whether ranks in other processes can be told anything. */
    boolean areTold() {
        return telling != null;
    }

    void tell(List<Integer> processes, String key, String call) {
        BiConsumer<List<Integer>, String> present = telling;
        if (present != null) {
            present.accept(processes, key.length() + "" + SEPARATOR + key + call);
        }
    }

    /** Takes what a process has said through {@link #tell}; what was cut off on its way, or is something else, is no message. */
    void hear(int process, String message) {
        int begin = message.indexOf(SEPARATOR) + 1;
        int end = begin + length(message.substring(0, Math.max(0, begin - 1)));
        if (end < begin || end > message.length()) {
            return;
        }
        monitor.lock();
        try {
            heard.computeIfAbsent(message.substring(begin, end), _ -> new HashMap<>())
                    .put(process, message.substring(end));
        } finally {
            monitor.unlock();
        }
    }

    /** Returns a length, or one below 0 where the text is none. */
    private static int length(String text) {
        try {
            return Integer.parseInt(text);
        } catch (NumberFormatException none) {
            return -1;
        }
    }

    /** Waits, no longer than that, until what was said of {@code key} by process is enough; returns what it was then. */
    Map<Integer, String> await(String key, long millis, Predicate<Map<Integer, String>> enough) {
        monitor.lock();
        try {
            monitor.waitUntil(() -> enough.test(heard.getOrDefault(key, Map.of())), millis);
            return said(key);
        } finally {
            monitor.unlock();
        }
    }

    /** Returns the announcements for {@code key} so far, by process. */
    Map<Integer, String> said(String key) {
        monitor.lock();
        try {
            return Map.copyOf(heard.getOrDefault(key, Map.of()));
        } finally {
            monitor.unlock();
        }
    }

    /** Forgets the announcements for {@code key}: all ranks have compared them. */
    void forget(String key) {
        monitor.lock();
        try {
            heard.remove(key);
        } finally {
            monitor.unlock();
        }
    }

    /** Forgets the announcements for keys that are not needed here. */
    void forgetIf(Predicate<String> unwanted) {
        monitor.lock();
        try {
            heard.keySet().removeIf(unwanted);
        } finally {
            monitor.unlock();
        }
    }

    /** Wakes the waiting threads: a rank has failed. */
    void wake() {
        monitor.lock();
        monitor.unlock();
    }
}
