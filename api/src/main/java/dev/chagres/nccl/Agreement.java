package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.util.List;
import java.util.Objects;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.IntStream;

/**
 * Which ranks remain after one has failed, and the value of each of them: the same on all remaining ranks.
 *
 * <p>The remaining ranks go on with {@code communicator.shrink(config, agreement.excluded())}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code MPI_Comm_agree} of MPI's user-level failure mitigation.
 *
 * @param ranks the remaining ranks, ascending, as numbered in the communicator
 * @param values the value of each of them, in the same order
 * @param of how many ranks the communicator has
 */
public record Agreement(List<Integer> ranks, List<Long> values, int of) {
    private static final String WHERE = "an agreement";

    /** Copies the lists. */
    public Agreement {
        ranks = Checks.givenAll("ranks", ranks);
        values = Checks.givenAll("values", values);
    }

    /**
     * Revokes the communicator, and waits until each of its ranks has called this, has ended, or was silent for the timeout. A rank that
     * calls this later is excluded.
     *
     * <p>Processes may be silent and still live, behind a network that has failed. So a group of processes goes on only if it is more than
     * half of them, or half of them including the first one: the others might go on, too.
     *
     * @param value this rank's value for the others
     * @throws RankFailedException when the others have gone on without this rank, or may have
     * @throws IllegalStateException when the communicator is closed, a stream of the device captures, or inside {@link Communicator#group};
     *     if ranks are processes, when it does not contain all remaining ranks, or {@link UniqueId#agreeThrough} was not called
     */
    public static Agreement of(Communicator communicator, long value) {
        Endpoint endpoint = Checks.given("communicator", communicator).endpoint();
        endpoint.handle();
        endpoint.state.ensureNotCapturing("agreement");
        Group.refuse("agreement");
        if (endpoint.failure() == null) {
            communicator.revoke();
        }
        ThreadRanks meeting = endpoint.meeting;
        SortedMap<Integer, Long> left = meeting == null
                ? ofProcesses(endpoint, value)
                : meeting.accords.agree(
                        endpoint.rank,
                        value,
                        Called.in(endpoint.toString(), WHERE).toString(),
                        endpoint.config.timeout().toMillis());
        return new Agreement(List.copyOf(left.keySet()), List.copyOf(left.values()), endpoint.ranks);
    }

    private static SortedMap<Integer, Long> ofProcesses(Endpoint endpoint, long value) {
        PeerPlace place = endpoint.elsewhere;
        if (place == null || !place.isBase()) {
            throw new IllegalStateException("agreement: expected a communicator of all processes that are left, got "
                    + endpoint + ", which was split from one");
        }
        RankFailure failure = Objects.requireNonNull(endpoint.failure());
        List<Integer> missed = failure.waiting() == null ? List.of() : place.processes(failure.ranks());
        String why = String.valueOf(
                failure.exception(Called.in(endpoint.toString(), WHERE)).getMessage());
        PeerAgreement.Outcome outcome = place.peers()
                .agree(new PeerAgreement.Proposal(place.base(), missed, why, value, endpoint.config.timeout()));
        if (outcome == null) {
            throw new IllegalStateException("agreement: expected processes that can reach each other, got " + endpoint
                    + ", opened without UniqueId.agreeThrough; start again from a saved state");
        }
        SortedMap<Integer, Long> left = new TreeMap<>();
        outcome.left().forEach((process, said) -> left.put(place.rank(process), said));
        return left;
    }

    /** Returns the ranks that do not remain. */
    public int[] excluded() {
        return IntStream.range(0, of).filter(rank -> !ranks.contains(rank)).toArray();
    }

    /** Returns the first rank with the largest value, as numbered in the shrunk communicator. */
    public int placeOfLargest() {
        int place = 0;
        for (int i = 1; i < values.size(); i++) {
            place = values.get(i) > values.get(place) ? i : place;
        }
        return place;
    }
}
