package dev.chagres.sharding;

import dev.chagres.internal.Checks;
import dev.chagres.layer.CallObserver;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassObserver.Direction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.function.IntConsumer;
import org.jspecify.annotations.Nullable;

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

    private final Object owner;
    private final IntConsumer complete;
    private final Released released;
    private final int groups;
    private @Nullable Pass pass;
    private Direction outermost = Direction.FORWARD;
    /** The groups that each call under way uses, and in which form, innermost last; and how much was saved before it. */
    private final List<BitSet> frames = new ArrayList<>();

    private int[] begins = new int[8];
    private int depth;
    /** By group, of its earliest call: how much was saved before it, and how many calls were around it. */
    private final int[] savedBefore;

    private final int[] depthBefore;

    /** Is told which groups a call has used. */
    interface Released {
        void accept(int group, WeightForm form);
    }

    /**
     * {@code owner} stands in errors. {@code complete} is told the number of each group once; {@code released} that of each group that a call has used, as often as
     * {@link #uses} said that the use is new, and in which form.
     */
    GroupProgress(Object owner, int groups, IntConsumer complete, Released released) {
        this.owner = owner;
        this.groups = groups;
        this.complete = complete;
        this.released = released;
        savedBefore = new int[groups];
        depthBefore = new int[groups];
        restart();
    }

    /** Forgets every use: a micro-batch begins. */
    void restart() {
        Arrays.fill(savedBefore, UNUSED);
    }

    /** Says that the innermost call uses {@code group} in this form, and returns whether it has not done so before. */
    boolean uses(int group, WeightForm form) {
        int use = form.ordinal() * groups + group;
        if (depth == 0 || frames.get(depth - 1).get(use)) {
            return false;
        }
        frames.get(depth - 1).set(use);
        return true;
    }

    /**
     * Returns the pass whose call is under way.
     *
     * @throws NullPointerException when none was
     */
    Pass pass() {
        return Checks.given("pass", pass);
    }

    /** Returns whether a call is under way. */
    boolean isInCall() {
        return depth > 0;
    }

    /** Returns which way the outermost call goes: backward may run forward again. */
    Direction direction() {
        return outermost;
    }

    @Override
    public void begins(Direction direction, Pass pass) {
        this.pass = pass;
        if (depth == 0) {
            outermost = direction;
            // An evaluation between a micro-batch's forward and backward begins none.
            if (direction == Direction.FORWARD
                    && pass.isSaving()
                    && pass.calls().savedCount() == 0) {
                restart();
            }
        }
        if (depth == frames.size()) {
            frames.add(new BitSet(WeightForm.COUNT * groups));
            if (depth == begins.length) {
                begins = Arrays.copyOf(begins, 2 * depth);
            }
        }
        begins[depth++] = pass.calls().savedCount();
    }

    @Override
    public void ends(Direction direction, Pass pass) {
        BitSet used = frames.get(--depth);
        boolean done = false;
        try {
            settle(direction, pass, used);
            done = true;
        } finally {
            if (!done) {
                // A collective that begins here may fail. The call then fails, which ends it.
                depth++;
            }
        }
    }

    private void settle(Direction direction, Pass pass, BitSet used) {
        if (direction == Direction.BACKWARD) {
            undone(pass.calls().savedCount());
        } else if (pass.isSaving()) {
            for (int use = used.nextSetBit(0); use >= 0; use = used.nextSetBit(use + 1)) {
                use(use % groups);
            }
        } else if (depth > 0) {
            // Recomputation saves nothing inside, but the call around it does.
            handOver(used, frames.get(depth - 1));
        }
        release(used);
    }

    private void handOver(BitSet used, BitSet around) {
        for (int use = used.nextSetBit(0); use >= 0; use = used.nextSetBit(use + 1)) {
            if (!around.get(use)) {
                around.set(use);
                used.clear(use);
            }
        }
    }

    private void release(BitSet used) {
        for (int use = used.nextSetBit(0); use >= 0; use = used.nextSetBit(use + 1)) {
            released.accept(use % groups, WeightForm.of(use / groups));
        }
        used.clear();
    }

    @Override
    public void fails() {
        release(frames.get(--depth));
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

    @Override
    public String toString() {
        return owner.toString();
    }
}
