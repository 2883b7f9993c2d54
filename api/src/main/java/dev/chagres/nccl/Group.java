package dev.chagres.nccl;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The calls that a thread passes to NCCL as one group.
 *
 * <p>Threading: one for each thread.
 *
 * <p>Source: {@code ncclGroupStart} and {@code ncclGroupEnd} of {@code nccl.h}.
 */
final class Group {
    private static final ThreadLocal<Group> OF_THREAD = ThreadLocal.withInitial(Group::new);
    private static final int NO_RANK = -1;

    private final List<RankCalls> members = new ArrayList<>();
    private final List<CallComparison> comparisons = new ArrayList<>();
    private int depth;
    private boolean failed;

    private Group() {}

    static Group ofThread() {
        return OF_THREAD.get();
    }

    /** Refuses a call that cannot be in a group. */
    static void refuse(String call) {
        if (ofThread().isOpen()) {
            throw new IllegalStateException(call + ": expected a call outside of Communicator.group, got one inside");
        }
    }

    boolean isOpen() {
        return depth > 0;
    }

    /** Adds a call of {@code member}, and its comparison unless that is null. */
    void add(RankCalls member, @Nullable CallComparison comparison) {
        if (comparison != null) {
            comparisons.add(comparison);
        }
        for (int i = 0; i < members.size(); i++) {
            if (members.get(i) == member) {
                return;
            }
        }
        members.add(member);
    }

    void run(Runnable body) {
        if (depth == 0) {
            members.clear();
            comparisons.clear();
            failed = false;
            Status.nccl(Nccl.ncclGroupStart(), "ncclGroupStart");
            DeviceState.beginGroup();
        }
        depth++;
        try {
            body.run();
            if (failed) {
                throw new IllegalStateException(
                        "group: expected the exception of an inner group to propagate, got it caught inside; nothing"
                                + " of the group was enqueued");
            }
        } catch (Throwable thrown) {
            failed = true;
            throw thrown;
        } finally {
            depth--;
            if (depth == 0) {
                try {
                    finish();
                } finally {
                    DeviceState.endGroup();
                }
            }
        }
    }

    /** Passes the calls to NCCL, unless the body threw. */
    private void finish() {
        if (failed) {
            abandon();
            return;
        }
        try {
            for (int i = 0; i < comparisons.size(); i++) {
                comparisons.get(i).announce();
            }
            for (int i = 0; i < comparisons.size(); i++) {
                comparisons.get(i).compare();
            }
            for (int i = 0; i < members.size(); i++) {
                members.get(i).publish();
            }
            for (int i = 0; i < members.size(); i++) {
                members.get(i).meet();
            }
        } catch (RuntimeException failed) {
            leave();
            abandon();
            throw failed;
        }
        int status = Nccl.ncclGroupEnd();
        Called during =
                status == 0 || members.isEmpty() ? null : members.getFirst().called();
        leave();
        for (int i = 0; i < members.size(); i++) {
            members.get(i).given(status);
        }
        if (status != 0 && !members.isEmpty()) {
            members.getFirst().endpoint().failures().settle(status, "ncclGroupEnd", during);
        }
        Status.nccl(status, "ncclGroupEnd");
    }

    /** From the last to the first, since each restores the thread's capture mode of its beginning. */
    private void leave() {
        for (int i = members.size() - 1; i >= 0; i--) {
            members.get(i).leave();
        }
    }

    /** Ends the group so that NCCL runs nothing of it: one call that it refuses fails the whole. */
    private void abandon() {
        try {
            for (int i = 0; i < members.size(); i++) {
                RankCalls member = members.get(i);
                member.counts().forget();
                var _ = NcclCalls.broadcast(
                        0, 0, 0, Nccl.ncclInt8(), NO_RANK, member.endpoint().handle(), MemorySegment.NULL);
            }
        } finally {
            // Else every later group of this thread would be nested in this one.
            var _ = Nccl.ncclGroupEnd();
        }
    }
}
