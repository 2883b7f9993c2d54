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
    /** How many announced calls of a process may wait here. All calls of a group wait at once; single ones wait one by one. */
    static final int MOST = 1 << 14;

    static final int MOST_CHARACTERS = 1 << 22;
    private static final char SEPARATOR = ':';

    /** What waits here of one process. */
    private static final class Room {
        private int calls;
        private long characters;

        private void add(int count, long length) {
            calls += count;
            characters += length;
        }
    }

    private final ConditionLock lock = new ConditionLock();
    private final Map<String, Map<Integer, String>> heard = new HashMap<>();
    private final Map<Integer, Room> rooms = new HashMap<>();
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

    /**
     * Takes what a process has said through {@link #tell}; what was cut off on its way, or is something else, is no message.
     *
     * @throws IllegalStateException when the process has announced too much that this one has not compared yet
     */
    void hear(int process, String message) {
        int begin = message.indexOf(SEPARATOR) + 1;
        int end = begin + length(message.substring(0, Math.max(0, begin - 1)));
        if (end < begin || end > message.length()) {
            return;
        }
        try (var _ = lock.hold()) {
            keep(process, message.substring(begin, end), message.substring(end));
        }
    }

    private void keep(int process, String key, String call) {
        Room room = rooms.computeIfAbsent(process, _ -> new Room());
        String before = heard.getOrDefault(key, Map.of()).get(process);
        int calls = before == null ? 1 : 0;
        long characters = call.length() + (before == null ? key.length() : -(long) before.length());
        ensureRoom(process, room.calls + calls, MOST, "announced calls");
        ensureRoom(process, room.characters + characters, MOST_CHARACTERS, "characters of announced calls");
        room.add(calls, characters);
        heard.computeIfAbsent(key, _ -> new HashMap<>()).put(process, call);
    }

    private static void ensureRoom(int process, long count, int most, String what) {
        if (count > most) {
            throw new IllegalStateException("rank " + process + ": expected at most " + most + " " + what
                    + " that this process has not compared yet, got more");
        }
    }

    /** Gives back the room of what was said for {@code key}. */
    private void free(String key, Map<Integer, String> said) {
        said.forEach((process, call) -> {
            Room room = rooms.get(process);
            if (room != null) {
                room.add(-1, -(long) key.length() - call.length());
            }
        });
    }

    /** Returns a length, or one below 0 where the text is none. */
    private static int length(String text) {
        try {
            return Integer.parseInt(text);
        } catch (NumberFormatException none) {
            return -1;
        }
    }

    /** Waits, no longer than that or an interrupt, until what was said of {@code key} by process is enough; returns what it was then. */
    Map<Integer, String> await(String key, long millis, Predicate<Map<Integer, String>> enough) {
        try (var _ = lock.hold()) {
            var _ = lock.waitUntilInterrupted(() -> enough.test(heard.getOrDefault(key, Map.of())), millis);
            return said(key);
        }
    }

    /** Returns the announcements for {@code key} so far, by process. */
    Map<Integer, String> said(String key) {
        try (var _ = lock.hold()) {
            return Map.copyOf(heard.getOrDefault(key, Map.of()));
        }
    }

    /** Forgets the announcements for {@code key}: all ranks have compared them. */
    void forget(String key) {
        try (var _ = lock.hold()) {
            Map<Integer, String> said = heard.remove(key);
            if (said != null) {
                free(key, said);
            }
        }
    }

    /** Forgets the announcements for keys that are not needed here. */
    void forgetIf(Predicate<String> unwanted) {
        try (var _ = lock.hold()) {
            heard.entrySet().removeIf(one -> {
                boolean goes = unwanted.test(one.getKey());
                if (goes) {
                    free(one.getKey(), one.getValue());
                }
                return goes;
            });
        }
    }

    /** Wakes the waiting threads: a rank has failed. */
    void wake() {
        lock.hold().close();
    }
}
