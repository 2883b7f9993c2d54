package dev.chagres.launch;

import dev.chagres.internal.RankNames;
import dev.chagres.launch.ShrinkDecision.Proposal;
import java.util.Collection;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * One agreement of ranks that are processes on the remaining ranks, at the rank that keeps the store.
 *
 * <p>A rank whose process has ended does not remain. One that lives and does not come may be going on with others, behind a failed network:
 * those that came go on only if they are more than half of the living ranks, or half of them including the lowest rank. So two groups can
 * never both go on.
 *
 * <p>Threading: under the lock of the {@link StoreServer}.
 */
final class ShrinkConsensus {
    private final int keeper;
    private long end;
    /** Of the communicators that failed. */
    private final Set<Integer> members = new TreeSet<>();

    private final SortedMap<Integer, Long> came = new TreeMap<>();
    private final Set<Integer> missed = new TreeSet<>();

    /** Ranks that neither come nor end are waited for until {@code end}. */
    ShrinkConsensus(int keeper, long end) {
        this.keeper = keeper;
        this.end = end;
    }

    /** Waits for other ranks until then, where that is earlier than what other ranks have said. */
    void waitUntil(long time) {
        end = time - end < 0 ? time : end;
    }

    /** Takes what a rank says, unless another one that came before has missed it. */
    void come(int rank, Proposal proposal) {
        if (missed.contains(rank)) {
            return;
        }
        members.addAll(proposal.members());
        came.put(rank, proposal.value());
        proposal.missed().stream().filter(other -> !came.containsKey(other)).forEach(missed::add);
    }

    /** Returns the ranks that others have missed for the timeout. */
    Set<Integer> missed() {
        return new TreeSet<>(missed);
    }

    /** Returns the ranks that have not come, except those known not to go on. */
    Set<Integer> absent(Collection<Integer> gone) {
        Set<Integer> absent = new TreeSet<>(members);
        absent.removeAll(came.keySet());
        absent.removeAll(gone);
        return absent;
    }

    /** Returns whether there is no other rank to wait for, but the rank that keeps the store has not come itself. */
    boolean isAbandoned(Collection<Integer> gone, long now) {
        return (now - end > 0 || gone.contains(keeper)) && !came.containsKey(keeper);
    }

    /**
     * Decides, once no further rank will come.
     *
     * @param left those that were left before
     * @param gone who will not go on
     * @param shared what those that are left get
     * @return null while others are waited for
     */
    @Nullable
    ShrinkDecision decide(Collection<Integer> left, Collection<Integer> gone, long now, byte[] shared) {
        Set<Integer> awaited = absent(gone);
        awaited.removeAll(missed);
        awaited.retainAll(left);
        came.keySet().removeAll(gone);
        if (!came.containsKey(keeper) || (!awaited.isEmpty() && now - end < 0)) {
            return null;
        }
        Set<Integer> silent = absent(gone);
        TreeSet<Integer> living = new TreeSet<>(silent);
        living.addAll(came.keySet());
        boolean isHalf = 2 * came.size() == living.size() && came.containsKey(living.first());
        if (silent.isEmpty() || 2 * came.size() > living.size() || isHalf) {
            return new ShrinkDecision(came, shared, "");
        }
        return ShrinkDecision.refused(RankNames.of(silent) + " neither came nor ended, and may go on without "
                + RankNames.of(came.keySet())
                + ": expected more than half of the ranks that live, or half of them with rank "
                + living.first() + "; start again from a saved state");
    }
}
