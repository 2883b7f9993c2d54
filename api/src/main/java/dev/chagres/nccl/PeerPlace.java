package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Which communicator one is whose ranks are in several processes, and how its ranks are numbered there.
 *
 * <p>Threading: immutable.
 *
 * @param peers what is known of ranks in other processes
 * @param name tells it from others that were made from the same identifier: the same on each of its ranks
 * @param base the ranks of the communicator that it was split from, else its own, as the processes are numbered
 * @param isBase whether its ranks are those, in that order
 */
record PeerPlace(Peers peers, String name, List<Integer> base, boolean isBase) {
    static PeerPlace ofAll(Peers peers, int ranks) {
        return new PeerPlace(peers, "", IntStream.range(0, ranks).boxed().toList(), true);
    }

    /** Returns that of a split; {@code same}: of all ranks, and this rank has its number. */
    PeerPlace split(long number, int color, boolean same) {
        return new PeerPlace(peers, name + "/" + number + ":" + color, base, isBase && same);
    }

    /**
     * Returns whether every rank knows the process of each. The ranks of a split do not: one that keeps its number cannot tell whether
     * others have changed theirs.
     */
    boolean isKnownToAll() {
        return isBase && name.indexOf('/') < 0;
    }

    /** Returns the name of the communicator that the one of this name was split or shrunk from. */
    static String parent(String name) {
        return name.substring(0, Math.max(0, Math.max(name.lastIndexOf('/'), name.lastIndexOf('-'))));
    }

    /** Returns that of a communicator without some of its ranks. */
    PeerPlace shrunk(int number, int... excluded) {
        List<Integer> left = without(excluded);
        return new PeerPlace(peers, name + "-" + number, left, isBase);
    }

    /** Returns the processes of all ranks but those. */
    List<Integer> without(int... excluded) {
        List<Integer> left = new ArrayList<>();
        for (int rank = 0; rank < base.size(); rank++) {
            int one = rank;
            if (IntStream.of(excluded).noneMatch(other -> other == one)) {
                left.add(base.get(rank));
            }
        }
        return left;
    }

    /** Returns the rank that a process is in {@link #base}; -1 when it is none, or nobody knows which it is. */
    int rank(int process) {
        return base.indexOf(process);
    }

    /** Returns the ranks that {@code waiting} waits for, as far as they can be found out. */
    List<Integer> behind(Endpoint waiting) {
        return behind(waiting.calls().counts().question());
    }

    /** Returns the ranks that keep one waiting that asks this, as far as they can be found out. */
    List<Integer> behind(String question) {
        return peers.behind(name, question).stream()
                .map(this::rank)
                .filter(rank -> rank >= 0)
                .toList();
    }

    /** Returns the processes of ranks of {@link #base}. */
    List<Integer> processes(List<Integer> ranks) {
        return ranks.stream().map(base::get).toList();
    }
}
