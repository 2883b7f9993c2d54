package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Where the ranks of communicators meet that were made from one: by splits, and by shrinks.
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

    /** Says what {@code rank} calls the split with that is the collective of that number. */
    void say(long number, int rank, int color, int key) {
        lock.lock();
        try {
            splits.say(number, rank, color, key);
        } finally {
            lock.unlock();
        }
    }

    /** Says that a rank was in that split without part. */
    void splitWithoutPart(long number) {
        lock.lock();
        try {
            var _ = splits.of(number, Integer.MIN_VALUE);
        } finally {
            lock.unlock();
        }
    }

    /** Returns where the ranks of {@code color} meet after the split that is the collective of that number. */
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
        // A failure is told to those that are here; one that was before is told now.
        RankFailure failure = origin.failure();
        if (failure != null) {
            child.fail(failure);
        }
        return child;
    }

    /** The same for the ranks that stay when others have failed: what failed before does not end it. */
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
