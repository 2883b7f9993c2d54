package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The meetings of communicators that were made from one by splits and shrinks.
 *
 * <p>Threading: thread-safe.
 */
final class Descendants {
    private final Meeting origin;
    private final Splits splits;
    private final ReentrantLock lock = new ReentrantLock();
    private final Map<String, Meeting> split = new HashMap<>();
    private final Map<String, Meeting> shrunk = new HashMap<>();

    Descendants(Meeting origin) {
        this.origin = origin;
        splits = new Splits(origin.ranks());
    }

    List<Meeting> split() {
        return copy(split);
    }

    List<Meeting> shrunk() {
        return copy(shrunk);
    }

    List<Meeting> all() {
        List<Meeting> all = new ArrayList<>(split());
        all.addAll(shrunk());
        return all;
    }

    private List<Meeting> copy(Map<String, Meeting> made) {
        lock.lock();
        try {
            return List.copyOf(made.values());
        } finally {
            lock.unlock();
        }
    }

    private void forget(Map<String, Meeting> made, String key) {
        lock.lock();
        try {
            made.remove(key);
        } finally {
            lock.unlock();
        }
    }

    /** Records the arguments of {@code rank} in the split with that number among the collectives. */
    void say(long number, int rank, int color, int key) {
        lock.lock();
        try {
            splits.say(number, rank, color, key);
        } finally {
            lock.unlock();
        }
    }

    /** Records that a rank was in that split without joining a part. */
    void splitWithoutPart(long number) {
        lock.lock();
        try {
            var _ = splits.of(number, Integer.MIN_VALUE);
        } finally {
            lock.unlock();
        }
    }

    /** Returns the meeting of the ranks of {@code color} after the split with that number. */
    Meeting split(long number, int color) {
        String key = "split " + number + " color " + color;
        Meeting child;
        lock.lock();
        try {
            int[] numbers =
                    Arrays.stream(splits.of(number, color)).map(origin::number).toArray();
            child = split.computeIfAbsent(key, _ -> new Meeting(() -> forget(split, key), origin, numbers));
        } finally {
            lock.unlock();
        }
        // A failure is reported to existing meetings; an earlier one is reported to this one now.
        RankFailure failure = origin.failure();
        if (failure != null) {
            child.fail(failure);
        }
        return child;
    }

    /** The same for the ranks that remain after others have failed: earlier failures do not end it. */
    Meeting shrink(String key, int... staying) {
        int[] numbers = Arrays.stream(staying).map(origin::number).toArray();
        lock.lock();
        try {
            return shrunk.computeIfAbsent(key, _ -> new Meeting(() -> forget(shrunk, key), null, numbers));
        } finally {
            lock.unlock();
        }
    }
}
