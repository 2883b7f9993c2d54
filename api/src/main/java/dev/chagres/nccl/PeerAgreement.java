package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * How ranks that are processes agree on the remaining ranks; implemented by the code that connects the processes. {@link Agreement} calls
 * it.
 *
 * <p>Threading: called on the device's thread.
 */
public interface PeerAgreement {
    /**
     * Waits until the remaining ranks are decided.
     *
     * @throws RankFailedException when the others have gone on without this rank, or may have
     */
    Outcome agree(Proposal proposal);

    /**
     * A rank's proposal after a failure. Ranks are numbers in the communicator that all processes opened together.
     *
     * <p>Threading: immutable.
     *
     * @param members the ranks of the communicator that failed, in their order there
     * @param missed ranks that did not call a collective within the timeout, which are excluded even if they live
     * @param why what the rank knows of the failure
     * @param value its value for the others
     * @param timeout how long it waits for ranks that are silent but have not ended
     */
    record Proposal(List<Integer> members, List<Integer> missed, String why, long value, Duration timeout) {
        /** Copies the lists. */
        public Proposal {
            members = Checks.givenAll("members", members);
            missed = Checks.givenAll("missed", missed);
            Checks.given("why", why, "timeout", timeout);
        }
    }

    /**
     * The decision, which is the same on all remaining ranks.
     *
     * <p>Threading: immutable.
     *
     * @param left the remaining ranks, ascending, and the value of each of them
     * @param id {@link UniqueId#toBytes()} of a new communicator that they can open
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
