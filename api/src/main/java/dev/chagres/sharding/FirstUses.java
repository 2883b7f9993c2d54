package dev.chagres.sharding;

import java.util.Arrays;
import java.util.function.IntConsumer;

/**
 * For each group of parameters, the earliest forward call of a micro-batch that uses it and whose backward is still to come.
 *
 * <p>Threading: the device's thread.
 */
final class FirstUses {
    private static final int UNUSED = -1;

    /** By group, for its earliest call: how much was saved before it, and how many calls enclosed it. */
    private final int[] savedBefore;

    private final int[] depthBefore;

    FirstUses(int groups) {
        savedBefore = new int[groups];
        depthBefore = new int[groups];
        restart();
    }

    /** Forgets every use: a micro-batch begins. */
    void restart() {
        Arrays.fill(savedBefore, UNUSED);
    }

    /** Notes a call that uses {@code group}. */
    void use(int group, int saved, int depth) {
        boolean first = savedBefore[group] == UNUSED;
        if (first || saved < savedBefore[group] || (saved == savedBefore[group] && depth < depthBefore[group])) {
            savedBefore[group] = saved;
            depthBefore[group] = depth;
        }
    }

    /**
     * Calls {@code complete} for each group whose earliest call was undone by a backward call, after which {@code saved} are saved. An
     * inner call of the one that used the group may return while the outer one still has gradients to write.
     */
    void undone(int saved, int depth, IntConsumer complete) {
        for (int group = savedBefore.length - 1; group >= 0; group--) {
            if (savedBefore[group] != UNUSED && saved <= savedBefore[group] && depth <= depthBefore[group]) {
                savedBefore[group] = UNUSED;
                complete.accept(group);
            }
        }
    }
}
