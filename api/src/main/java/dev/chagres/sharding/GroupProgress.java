package dev.chagres.sharding;

import dev.chagres.layer.CallObserver;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassObserver.Direction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.function.IntConsumer;

/**
 * Finds out, while a pass goes backward, whose gradients no later call of the pass will write.
 *
 * <p>A forward call that uses a group of parameters saves something on top of what the pass had saved before. Once the earliest such
 * call has been undone, that is, once no more is saved than before it and its backward call has returned, the group is complete.
 *
 * <p>Threading: the device's thread.
 */
final class GroupProgress implements CallObserver {
    private static final int UNUSED = -1;

    private final IntConsumer complete;
    /** The groups that each call under way uses, innermost last; and how much was saved before it. */
    private final List<BitSet> frames = new ArrayList<>();

    private int[] begins = new int[8];
    private int depth;
    /** By group, of its earliest call: how much was saved before it, and how many calls were around it. */
    private final int[] savedBefore;

    private final int[] depthBefore;

    /** {@code complete} is told the number of each group once. */
    GroupProgress(int groups, IntConsumer complete) {
        this.complete = complete;
        savedBefore = new int[groups];
        depthBefore = new int[groups];
        restart();
    }

    /** Forgets every use: a micro-batch begins. */
    void restart() {
        Arrays.fill(savedBefore, UNUSED);
        frames.forEach(BitSet::clear);
        depth = 0;
    }

    /** Says that the innermost call uses {@code group}. */
    void uses(int group) {
        if (depth > 0) {
            frames.get(depth - 1).set(group);
        }
    }

    @Override
    public void begins(Pass pass) {
        if (depth == frames.size()) {
            frames.add(new BitSet(savedBefore.length));
            if (depth == begins.length) {
                begins = Arrays.copyOf(begins, 2 * depth);
            }
        }
        begins[depth++] = pass.savedCount();
    }

    @Override
    public void ends(Direction direction, Pass pass) {
        BitSet used = frames.get(--depth);
        if (direction == Direction.BACKWARD) {
            undone(pass.savedCount());
        } else if (pass.isSaving()) {
            for (int group = used.nextSetBit(0); group >= 0; group = used.nextSetBit(group + 1)) {
                use(group);
            }
        } else if (depth > 0) {
            // Recomputation saves nothing inside, but the call around it does.
            frames.get(depth - 1).or(used);
        }
        used.clear();
    }

    @Override
    public void fails() {
        frames.get(--depth).clear();
    }

    private void use(int group) {
        int saved = begins[depth];
        boolean first = savedBefore[group] == UNUSED;
        if (first || saved < savedBefore[group] || (saved == savedBefore[group] && depth < depthBefore[group])) {
            savedBefore[group] = saved;
            depthBefore[group] = depth;
        }
    }

    /** A call inside the one that used the group may return while that one still has gradients to write. */
    private void undone(int saved) {
        for (int group = savedBefore.length - 1; group >= 0; group--) {
            if (savedBefore[group] != UNUSED && saved <= savedBefore[group] && depth <= depthBefore[group]) {
                savedBefore[group] = UNUSED;
                complete.accept(group);
            }
        }
    }
}
