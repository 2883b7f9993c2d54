package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * How many collectives and transfers a rank has called of a communicator, and its waiting for the peers of the next one.
 *
 * <p>Where ranks are threads of one program, a rank gives a call to NCCL only when its peers have come to theirs. NCCL's kernels wait
 * on the device for those of the peers; a peer that is still in a call of CUDA which waits for all devices, as freeing memory does,
 * would never start its own.
 *
 * <p>Threading: the device's thread.
 */
final class CallCounts implements Awaited {
    /** Calls that are made together: those of a group, or of a captured graph. */
    static final class Together {
        private long collectives;
        private final long[] transfers;
        private final long[] bytes = MovedBytes.emptySums();

        private Together(int ranks) {
            transfers = new long[ranks];
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

    /** Null where ranks are no threads of one program. */
    private final @Nullable Arrivals arrivals;

    private final MovedBytes moved;
    private final int rank;
    /** Collectives called, those of an open group included. */
    private long called;
    /** Collectives that were given to NCCL. */
    private long given;
    /** What the peers' numbers must reach before this rank goes on, 0 when none is awaited. */
    private long awaited;
    /** The same of the sends to, and receives from, each peer. */
    private final long[] calledTransfers;

    private final long[] givenTransfers;
    private final long[] awaitedTransfers;
    private boolean transfersAwaited;
    private long announced;
    /** By operation, of the calls that were counted and that NCCL has not taken. */
    private final long[] bytes = MovedBytes.emptySums();

    CallCounts(@Nullable Arrivals arrivals, MovedBytes moved, int ranks, int rank) {
        this.arrivals = arrivals;
        this.moved = moved;
        this.rank = rank;
        calledTransfers = new long[ranks];
        givenTransfers = new long[ranks];
        awaitedTransfers = new long[ranks];
    }

    /** Counts a call that is about to be given to NCCL; returns its number among the collectives, or the transfers with that peer. */
    long count(Operation operation, int peer) {
        if (!operation.isTransfer()) {
            return ++called;
        }
        return peer == rank ? 0 : ++calledTransfers[peer];
    }

    /** Counts what a call moves that was counted. */
    void moves(Operation operation, long newBytes) {
        bytes[operation.ordinal()] += newBytes;
    }

    /** Forgets the calls that were counted and not given to NCCL. */
    void forget() {
        Arrays.fill(bytes, 0);
        called = given;
        System.arraycopy(givenTransfers, 0, calledTransfers, 0, givenTransfers.length);
    }

    /** Adds the calls that were counted and not given to NCCL to {@code together}, or to a new one, and forgets them. */
    Together take(@Nullable Together together) {
        Together taken = together == null ? new Together(givenTransfers.length) : together;
        taken.collectives += called - given;
        for (int peer = 0; peer < givenTransfers.length; peer++) {
            taken.transfers[peer] += calledTransfers[peer] - givenTransfers[peer];
        }
        MovedBytes.add(taken.bytes, bytes);
        forget();
        return taken;
    }

    /** Tells the peers of the calls that were counted. Of several the first is awaited, for peers may make theirs one by one. */
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

    private void publishTransfers(@Nullable Arrivals where) {
        for (int peer = 0; peer < givenTransfers.length; peer++) {
            boolean isCalled = calledTransfers[peer] != givenTransfers[peer];
            awaitedTransfers[peer] = isCalled ? givenTransfers[peer] + 1 : 0;
            givenTransfers[peer] = calledTransfers[peer];
            if (where != null) {
                where.transferred(rank, peer, givenTransfers[peer]);
            }
        }
    }

    /** Counts what was moved by the calls that NCCL has taken since. */
    void given() {
        moved.add(bytes);
        Arrays.fill(bytes, 0);
    }

    /** Counts what the calls of a graph move that is launched. */
    void given(Together captured) {
        moved.add(captured.bytes);
    }

    /** Counts the calls of a graph that is about to be launched. */
    void count(Together captured) {
        called += captured.collectives;
        for (int peer = 0; peer < givenTransfers.length; peer++) {
            calledTransfers[peer] += captured.transfers[peer];
        }
    }

    /** Waits for the peers of what was published. */
    void meet() {
        if (arrivals == null) {
            return;
        }
        arrivals.await(rank, Arrivals.ALL, awaited);
        if (transfersAwaited) {
            for (int peer = 0; peer < awaitedTransfers.length; peer++) {
                arrivals.await(rank, peer, awaitedTransfers[peer]);
            }
        }
    }

    @Override
    public List<Integer> awaited() {
        List<Integer> all = new ArrayList<>();
        for (int peer = 0; peer < awaitedTransfers.length; peer++) {
            if (peer != rank && (awaited > 0 || (transfersAwaited && awaitedTransfers[peer] > 0))) {
                all.add(peer);
            }
        }
        return all;
    }

    @Override
    public List<Integer> missing() {
        if (arrivals == null) {
            return List.of();
        }
        Set<Integer> missing = new TreeSet<>(arrivals.behind(rank, awaited));
        for (int peer = 0; transfersAwaited && peer < awaitedTransfers.length; peer++) {
            if (!arrivals.haveCome(rank, peer, awaitedTransfers[peer])) {
                missing.add(peer);
            }
        }
        return List.copyOf(missing);
    }

    /** Returns what a rank in another process is asked, to find out whether it has come to what this one waits for. Any thread. */
    String question() {
        StringBuilder text = new StringBuilder().append(rank).append(',').append(awaited);
        for (int peer = 0; transfersAwaited && peer < awaitedTransfers.length; peer++) {
            if (awaitedTransfers[peer] > 0) {
                text.append(',').append(peer).append(',').append(awaitedTransfers[peer]);
            }
        }
        return text.toString();
    }

    /** Returns whether this rank has come to what the other one waits for. Any thread. */
    boolean answers(String question) {
        String[] numbers = question.split(",");
        int asking = Integer.parseInt(numbers[0]);
        if (given < Long.parseLong(numbers[1])) {
            return false;
        }
        for (int i = 2; i + 1 < numbers.length; i += 2) {
            if (Integer.parseInt(numbers[i]) == rank && givenTransfers[asking] < Long.parseLong(numbers[i + 1])) {
                return false;
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
