package dev.chagres.sharding;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.pass.LayerHooks;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.function.IntConsumer;
import org.jspecify.annotations.Nullable;

/**
 * Finds out, while a pass goes backward, which groups' gradients no later call of the pass will write.
 *
 * <p>A forward call that uses a group of parameters saves something on top of what the pass had saved before. Once the earliest such
 * call has been undone, that is, once no more is saved than before it and its backward call has enqueued all gradients of parameters, the
 * group is complete. A call that leaves all gradients of a group to calls inside it does not count.
 *
 * <p>Threading: the device's thread.
 */
final class GradientReadiness implements LayerHooks {
    private final Object owner;
    private final IntConsumer complete;
    private final Released released;
    private final int groups;
    private @Nullable Pass pass;
    private Direction outermost = Direction.FORWARD;
    /** The groups that each call under way uses, in which form and with which writer, innermost last; and how much was saved before it. */
    private final List<BitSet> frames = new ArrayList<>();

    private int[] begins = new int[8];
    private int depth;
    /** By followed pass: a pipeline has several in flight. */
    private final List<Pass> followed = new ArrayList<>();

    private final List<EarliestCalls> earliestCalls = new ArrayList<>();

    /** Receives the groups that a call has used. */
    interface Released {
        void accept(int group, WeightForm form);
    }

    /**
     * {@code owner} is for errors. {@code complete} receives the number of each group once; {@code released} the number of each group that
     * a call has used, once per call, form and writer.
     */
    GradientReadiness(Object owner, int groups, IntConsumer complete, Released released) {
        this.owner = owner;
        this.groups = groups;
        this.complete = complete;
        this.released = released;
    }

    /** Observes the calls of a pass from now on. */
    void follow(Pass one) {
        one.calls().observe(this);
        followed.add(one);
        earliestCalls.add(new EarliestCalls(groups));
    }

    /** Forgets every use: a step or its last micro-batch begins. */
    void restart() {
        earliestCalls.forEach(EarliestCalls::restart);
    }

    private EarliestCalls of(Pass one) {
        return earliestCalls.get(followed.indexOf(one));
    }

    /** Returns whether the innermost call has recorded that it uses {@code group} in this form, and {@code writer} its gradients. */
    boolean isUsing(int group, WeightForm form, GradientOwner writer) {
        return depth > 0 && frames.get(depth - 1).get(use(group, form, writer));
    }

    /**
     * Records that the innermost call uses {@code group} in this form, which is released when the call ends or fails, and that {@code
     * writer} writes the gradient of what it reads.
     */
    void uses(int group, WeightForm form, GradientOwner writer) {
        if (depth > 0) {
            frames.get(depth - 1).set(use(group, form, writer));
        }
    }

    /** Uses whose gradients the reader writes come first. */
    private int use(int group, WeightForm form, GradientOwner writer) {
        return (writer.ordinal() * WeightForm.COUNT + form.ordinal()) * groups + group;
    }

    /** Returns the end of the uses whose gradients the reader writes. */
    private int endOfReaders() {
        return WeightForm.COUNT * groups;
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

    /** Returns the direction of the outermost call: backward may call forward to recompute. */
    Direction direction() {
        return outermost;
    }

    @Override
    public void begins(Direction direction, Pass pass) {
        this.pass = pass;
        if (depth == 0) {
            outermost = direction;
            // An evaluation between a micro-batch's forward and backward begins no micro-batch.
            if (direction == Direction.FORWARD
                    && pass.isSaving()
                    && pass.calls().savedCount() == 0) {
                of(pass).restart();
            }
        }
        if (depth == frames.size()) {
            frames.add(new BitSet(2 * endOfReaders()));
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

    @Override
    public void gradientsWritten(Pass pass) {
        of(pass).undone(pass.calls().savedCount(), depth - 1, complete);
    }

    private void settle(Direction direction, Pass pass, BitSet used) {
        if (direction == Direction.BACKWARD) {
            of(pass).undone(pass.calls().savedCount(), depth, complete);
        } else if (pass.isSaving()) {
            int end = endOfReaders();
            for (int use = used.nextSetBit(0); use >= 0 && use < end; use = used.nextSetBit(use + 1)) {
                of(pass).use(use % groups, begins[depth], depth);
            }
        } else if (depth > 0) {
            // Recomputed layers save nothing, but the call around them does.
            handOver(used, frames.get(depth - 1));
        }
        release(used);
    }

    private void handOver(BitSet used, BitSet around) {
        int end = endOfReaders();
        for (int use = used.nextSetBit(0); use >= 0 && use < end; use = used.nextSetBit(use + 1)) {
            if (!around.get(use)) {
                around.set(use);
                used.clear(use);
            }
        }
    }

    private void release(BitSet used) {
        for (int use = used.nextSetBit(0); use >= 0; use = used.nextSetBit(use + 1)) {
            released.accept(use % groups, WeightForm.of(use / groups % WeightForm.COUNT));
        }
        used.clear();
    }

    @Override
    public void fails() {
        release(frames.get(--depth));
    }

    @Override
    public String toString() {
        return owner.toString();
    }

    /**
     * For each group of parameters, the earliest forward call of a micro-batch that uses it and whose backward is still to come.
     */
    private static final class EarliestCalls {
        private static final int UNUSED = -1;

        /** By group, for its earliest call: how much was saved before it, and how many calls enclosed it. */
        private final int[] savedBefore;

        private final int[] depthBefore;

        EarliestCalls(int groups) {
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
}
