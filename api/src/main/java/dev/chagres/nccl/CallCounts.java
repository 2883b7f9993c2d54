package dev.chagres.nccl;

import dev.chagres.nccl.PeerWait.Awaited;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * Counts the collectives and transfers that a rank has called on a communicator, and waits for the peers of the next one.
 *
 * <p>If ranks are threads of one program, a rank passes a call to NCCL only when its peers have reached theirs. NCCL's kernels wait on the
 * device for those of the peers; a peer that is still in a CUDA call which waits for all devices, such as freeing memory, would never start
 * its own.
 *
 * <p>Threading: the device's thread.
 */
final class CallCounts implements Awaited {
    /** Calls that are made together: those of a group, or of a captured graph. */
    static final class Together {
        private long collectives;
        private final long[] transfers;
        private final long[] bytes = MovedBytes.emptySums();

        private Together(int slots) {
            transfers = new long[slots];
        }

        /** Returns how many calls there are. */
        long count() {
            long count = collectives;
            for (long transfer : transfers) {
                count += transfer;
            }
            return count;
        }
    }

    /** Prefixes of questions about the first call, and about all calls, for which a rank waits. */
    private static final String FIRST = "first";

    private static final String ALL = "all";

    /** Null unless ranks are threads of one program. */
    private final @Nullable Barrier arrivals;

    private final MovedBytes moved;
    private final int ranks;
    private final int rank;
    /** Collectives called, those of an open group included. */
    private long called;
    /** Collectives that were passed to NCCL. */
    private long given;
    /** The number that peers must reach before this rank goes on; 0: no wait. */
    private long awaited;
    /** The same for the sends to each peer, then for the receives from each. */
    private final long[] calledTransfers;

    private final long[] givenTransfers;
    private final long[] awaitedTransfers;
    private boolean transfersAwaited;
    private long announced;
    /** Bytes by operation, of counted calls that were not passed to NCCL yet. */
    private final long[] bytes = MovedBytes.emptySums();

    CallCounts(@Nullable Barrier arrivals, MovedBytes moved, int ranks, int rank) {
        this.arrivals = arrivals;
        this.moved = moved;
        this.ranks = ranks;
        this.rank = rank;
        calledTransfers = new long[2 * ranks];
        givenTransfers = new long[2 * ranks];
        awaitedTransfers = new long[2 * ranks];
    }

    /** Counts a call that is about to be passed to NCCL; returns its number among the collectives, or the transfers with that peer. */
    long count(Operation operation, int peer) {
        if (!operation.isTransfer()) {
            return ++called;
        }
        if (peer == rank) {
            return 0;
        }
        calledTransfers[operation == Operation.SEND ? sends(peer) : receives(peer)]++;
        return calledTransfers[sends(peer)] + calledTransfers[receives(peer)];
    }

    private static int sends(int peer) {
        return peer;
    }

    private int receives(int peer) {
        return ranks + peer;
    }

    /** Counts the bytes of a counted call. */
    void moves(Operation operation, long newBytes) {
        bytes[operation.ordinal()] += newBytes;
    }

    /** Forgets counted calls that were not passed to NCCL. */
    void forget() {
        Arrays.fill(bytes, 0);
        called = given;
        System.arraycopy(givenTransfers, 0, calledTransfers, 0, givenTransfers.length);
    }

    /** Moves counted calls that were not passed to NCCL to {@code together}, or to a new object. */
    Together take(@Nullable Together together) {
        Together taken = together == null ? new Together(givenTransfers.length) : together;
        taken.collectives += called - given;
        for (int slot = 0; slot < givenTransfers.length; slot++) {
            taken.transfers[slot] += calledTransfers[slot] - givenTransfers[slot];
        }
        MovedBytes.add(taken.bytes, bytes);
        forget();
        return taken;
    }

    /** Publishes counted calls to the peers. Of several only the first is awaited, since peers may make theirs one by one. */
    void publish() {
        awaited = called == given ? 0 : given + 1;
        given = called;
        transfersAwaited = !Arrays.equals(calledTransfers, givenTransfers);
        if (arrivals != null) {
            arrivals.entered(rank, given);
        }
        if (transfersAwaited) {
            publishTransfers(arrivals);
        }
        if (arrivals != null) {
            arrivals.wake(rank);
        }
    }

    private void publishTransfers(@Nullable Barrier where) {
        for (int slot = 0; slot < givenTransfers.length; slot++) {
            boolean isCalled = calledTransfers[slot] != givenTransfers[slot];
            awaitedTransfers[slot] = isCalled ? givenTransfers[slot] + 1 : 0;
            givenTransfers[slot] = calledTransfers[slot];
            if (where != null) {
                where.transferred(rank, slot, givenTransfers[slot]);
            }
        }
    }

    /** Counts the bytes of calls that NCCL has accepted since. */
    void given() {
        moved.add(bytes);
        Arrays.fill(bytes, 0);
    }

    /** Counts the bytes of the calls of a launched graph. */
    void given(Together captured) {
        moved.add(captured.bytes);
    }

    /** Counts the calls of a graph that is about to be launched. */
    void count(Together captured) {
        called += captured.collectives;
        for (int slot = 0; slot < givenTransfers.length; slot++) {
            calledTransfers[slot] += captured.transfers[slot];
        }
    }

    /** Waits for the peers of published calls. */
    void meet() {
        if (arrivals == null) {
            return;
        }
        arrivals.await(rank, awaited);
        if (transfersAwaited) {
            for (int peer = 0; peer < ranks; peer++) {
                arrivals.await(rank, peer, awaitedTransfers[sends(peer)], awaitedTransfers[receives(peer)]);
            }
        }
    }

    @Override
    public List<Integer> awaited() {
        List<Integer> all = new ArrayList<>();
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank && (awaited > 0 || awaitsTransfer(peer))) {
                all.add(peer);
            }
        }
        return all;
    }

    private boolean awaitsTransfer(int peer) {
        return transfersAwaited && (awaitedTransfers[sends(peer)] > 0 || awaitedTransfers[receives(peer)] > 0);
    }

    @Override
    public List<Integer> missing() {
        if (arrivals == null) {
            return List.of();
        }
        Set<Integer> missing = new TreeSet<>(arrivals.behind(rank, awaited));
        for (int peer = 0; transfersAwaited && peer < ranks; peer++) {
            if (!arrivals.haveCome(rank, peer, awaitedTransfers[sends(peer)], awaitedTransfers[receives(peer)])) {
                missing.add(peer);
            }
        }
        return List.copyOf(missing);
    }

    /**
     * Returns the ranks of this program that have not come to all that was given to NCCL, while {@link #missing} has those that have not
     * come to the first of it. Any thread.
     */
    List<Integer> behind() {
        if (arrivals == null) {
            return List.of();
        }
        Set<Integer> behind = new TreeSet<>(arrivals.behind(rank, given));
        for (int peer = 0; peer < ranks; peer++) {
            if (!arrivals.haveCome(rank, peer, givenTransfers[sends(peer)], 0)
                    || !arrivals.haveCome(rank, peer, 0, givenTransfers[receives(peer)])) {
                behind.add(peer);
            }
        }
        return List.copyOf(behind);
    }

    /** Returns the question to a rank in another process whether it has reached the first call that this one waits for. Any thread. */
    String question() {
        return question(FIRST, awaited, transfersAwaited ? awaitedTransfers : new long[2 * ranks]);
    }

    /** The same for all calls that were passed to NCCL. Any thread. */
    String questionOfAll() {
        return question(ALL, given, givenTransfers);
    }

    private String question(String kind, long collectives, long[] transfers) {
        StringBuilder text =
                new StringBuilder(kind).append(',').append(rank).append(',').append(collectives);
        for (int peer = 0; peer < ranks; peer++) {
            long sent = transfers[sends(peer)];
            long received = transfers[receives(peer)];
            if (sent > 0 || received > 0) {
                text.append(',')
                        .append(peer)
                        .append(',')
                        .append(sent)
                        .append(',')
                        .append(received);
            }
        }
        return text.toString();
    }

    /** Returns whether this rank has come to what the other one waits for. Any thread. */
    boolean answers(String question) {
        String[] parts = question.split(",");
        boolean all = parts[0].equals(ALL);
        int asking = Integer.parseInt(parts[1]);
        if (given < Long.parseLong(parts[2])) {
            return false;
        }
        for (int i = 3; i + 2 < parts.length; i += 3) {
            if (Integer.parseInt(parts[i]) == rank) {
                long sent = Long.parseLong(parts[i + 1]);
                long received = Long.parseLong(parts[i + 2]);
                boolean receives = givenTransfers[receives(asking)] >= sent;
                boolean sends = givenTransfers[sends(asking)] >= received;
                if (all ? !(receives && sends) : !((sent > 0 && receives) || (received > 0 && sends))) {
                    return false;
                }
            }
        }
        return true;
    }

    /** Returns the number of collectives called so far, the same on each rank. */
    long collectives() {
        return called;
    }

    /** Returns the number of a call that peers are told of, the same on each rank. */
    long nextAnnounced() {
        return ++announced;
    }
}
