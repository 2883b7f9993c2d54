package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * The name of a communicator whose ranks are in several processes, and the processes of its ranks.
 *
 * <p>Threading: immutable.
 *
 * @param peers what is known of ranks in other processes
 * @param name tells it from others that were made from the same identifier; each of its ranks has the same name for it
 * @param base the process of each of its ranks; where it was split from another communicator, those of that one's ranks
 * @param isBase whether {@code base} has its own ranks, in their order
 */
record PeerPlace(ProcessRanks peers, String name, List<Integer> base, boolean isBase) {
    static PeerPlace ofAll(ProcessRanks peers, int ranks) {
        return new PeerPlace(peers, "", IntStream.range(0, ranks).boxed().toList(), true);
    }

    /** Returns the place of a communicator that is split from this one; {@code same}: it has all ranks, and this rank keeps its number. */
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

    /** The communicators that fail together: one that was opened or shrunk, and all that were split from it. */
    private record Family(ProcessRanks peers, String name) {}

    /** Returns a key that is equal for communicators that fail together. */
    Object family() {
        int split = name.indexOf('/', name.lastIndexOf('-') + 1);
        return new Family(peers, split < 0 ? name : name.substring(0, split));
    }

    /** Returns the name of the communicator that the one of this name was split or shrunk from. */
    static String parent(String name) {
        return name.substring(0, Math.max(0, Math.max(name.lastIndexOf('/'), name.lastIndexOf('-'))));
    }

    /** Returns the place of a communicator that has the ranks of this one but some. */
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
        CallCounts counts = waiting.calls.counts;
        List<Integer> first = behind(counts.question());
        return first.isEmpty() ? behind(counts.questionOfAll()) : first;
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
