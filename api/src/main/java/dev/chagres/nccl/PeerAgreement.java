package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * How ranks that are processes agree on who is left: whoever started them knows how they reach each other. {@link Agreement} asks it.
 *
 * <p>Threading: called on the device's thread.
 */
public interface PeerAgreement {
    /**
     * Waits until it is decided which ranks are left.
     *
     * @throws RankFailedException when the others have gone on without this rank, or may have
     */
    Outcome agree(Proposal proposal);

    /**
     * What a rank says of a failure. Ranks are numbers of the communicator that all processes opened together.
     *
     * <p>Threading: immutable.
     *
     * @param members the ranks of the communicator that failed, in their order there
     * @param missed those that did not come within the timeout, which are left out even where they live
     * @param why what the rank has heard of the failure
     * @param value what it tells the others
     * @param timeout how long it waits for ranks that neither come nor have ended
     */
    record Proposal(List<Integer> members, List<Integer> missed, String why, long value, Duration timeout) {
        /** Copies the lists. */
        public Proposal {
            members = Checks.givenAll("members", members);
            missed = Checks.givenAll("missed", missed);
            Checks.given("why", why);
            Checks.given("timeout", timeout);
        }
    }

    /**
     * What was decided: the same on all that are left.
     *
     * <p>Threading: immutable.
     *
     * @param left the ranks that are left, ascending, and what each of them said
     * @param id of a communicator that they can open: {@link UniqueId#toBytes()}, made for this alone
     */
    record Outcome(SortedMap<Integer, Long> left, byte[] id) {
        /** Copies both. */
        public Outcome {
            left = Collections.unmodifiableSortedMap(new TreeMap<>(Checks.given("left", left)));
            id = Checks.given("id", id).clone();
        }

        /** Returns a copy. */
        @Override
        public byte[] id() {
            return id.clone();
        }
    }
}
