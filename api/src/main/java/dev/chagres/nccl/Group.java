package dev.chagres.nccl;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The calls that a thread passes to NCCL as one group.
 *
 * <p>Calls that are polled are kept, and passed when the group has ended without an exception. NCCL can end a group without running it only by a
 * call that it refuses, after which all non-blocking communicators of the group have failed for good ({@code groupCleanup} of its {@code group.cc}).
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
    private final List<IntSupplier> kept = new ArrayList<>();
    private int depth;
    private boolean failed;
    /** Whether calls of its communicators are polled. */
    private boolean polled;
    /** Whether kept calls are being passed to NCCL. */
    private boolean passing;

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
        if (members.isEmpty()) {
            polled = member.isPolled();
        } else if (polled != member.isPolled()) {
            throw new IllegalArgumentException("group: expected communicators of one callMode, got "
                    + described(members.getFirst()) + " and " + described(member) + "; NCCL runs a group in one mode");
        }
        members.add(member);
    }

    /** Returns whether calls are to be kept until the group has ended. */
    boolean keeps() {
        return polled && depth > 0 && !passing;
    }

    /** Keeps a call of NCCL; returns the status that NCCL would answer. */
    int keep(IntSupplier call) {
        kept.add(call);
        return Nccl.ncclSuccess();
    }

    private static String described(RankCalls member) {
        return member.endpoint + " with " + member.endpoint.config.callMode();
    }

    void run(Runnable body) {
        if (depth == 0) {
            members.clear();
            comparisons.clear();
            kept.clear();
            failed = false;
            polled = false;
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
            comparisons.forEach(CallComparison::announce);
            comparisons.forEach(CallComparison::compare);
            members.forEach(RankCalls::publish);
            members.forEach(RankCalls::meet);
            members.forEach(RankCalls::enter);
            pass();
        } catch (RuntimeException | Error failed) {
            leave();
            abandon();
            throw failed;
        }
        int status = awaitMembers(Nccl.ncclGroupEnd());
        RankCalls blamed = status == 0 || members.isEmpty() ? null : failedMember();
        Called during = blamed == null ? null : blamed.called();
        leave();
        for (int i = 0; i < members.size(); i++) {
            members.get(i).given(status);
        }
        if (blamed != null) {
            blamed.endpoint.failures.settle(status, "ncclGroupEnd", during);
        }
        Status.nccl(status, "ncclGroupEnd");
    }

    /** Passes the kept calls to NCCL, which says of one that it refuses at the end of the group, too. */
    private void pass() {
        passing = true;
        try {
            for (int i = 0; i < kept.size(); i++) {
                var _ = kept.get(i).getAsInt();
            }
        } finally {
            passing = false;
            kept.clear();
        }
    }

    /** Returns the first failure of a member, or the status of the group if none is in progress. */
    private int awaitMembers(int returned) {
        for (int i = 0; i < members.size(); i++) {
            members.get(i).endpoint.failures.leave(); // The wait for one may be one for the revocation of all.
        }
        int status = returned == Nccl.ncclInProgress() ? Nccl.ncclSuccess() : returned;
        for (int i = 0; i < members.size(); i++) {
            int own = members.get(i).await(returned);
            status = status == Nccl.ncclSuccess() ? own : status;
        }
        return status;
    }

    /** Returns the first member whose ranks have failed, or else the first one. */
    private RankCalls failedMember() {
        for (int i = 0; i < members.size(); i++) {
            if (members.get(i).endpoint.failure() != null) {
                return members.get(i);
            }
        }
        return members.getFirst();
    }

    /** From the last to the first, since each restores the thread's capture mode of its beginning. */
    private void leave() {
        for (int i = members.size() - 1; i >= 0; i--) {
            members.get(i).endpoint.failures.leave();
            members.get(i).leave();
        }
    }

    /** Ends the group so that NCCL runs nothing of it: one call that it refuses fails the whole. Of calls that are kept it knows none. */
    private void abandon() {
        try {
            for (int i = 0; i < members.size(); i++) {
                RankCalls member = members.get(i);
                member.counts.forget();
                if (!polled) {
                    var _ = NcclCalls.call(
                            Operation.BROADCAST,
                            0,
                            0,
                            0,
                            Nccl.ncclInt8(),
                            0,
                            NO_RANK,
                            member.endpoint.handle(),
                            MemorySegment.NULL);
                }
            }
        } finally {
            // Else every later group of this thread would be nested in this one.
            var _ = Nccl.ncclGroupEnd();
        }
    }
}
