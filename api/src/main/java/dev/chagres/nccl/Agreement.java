package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.util.List;
import java.util.Objects;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.IntStream;

/**
 * Which ranks are left after one has failed, and what each of them says: the same on all that are left.
 *
 * <p>Who is left goes on with {@code communicator.shrink(config, agreement.excluded())}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code MPI_Comm_agree} of MPI's user-level failure mitigation.
 *
 * @param ranks those that are left, ascending, as the communicator numbers them
 * @param values what each of them said, in the same order
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
     * Revokes the communicator, and waits until each of its ranks has called this, has ended, or has been missed for the timeout. A rank that
     * comes after that is left out.
     *
     * <p>Of ranks that are processes, some may be silent and still live, behind a network that has failed: then those that are half of them
     * or fewer do not go on, for the others may. Half of them go on where the first of all is one.
     *
     * @param value what this rank tells the others
     * @throws RankFailedException when the others have gone on without this rank, or may have
     * @throws IllegalStateException when the communicator is closed, a stream of the device captures, or inside {@link Communicator#group};
     *     where ranks are processes, when it does not have all that are left, or whoever started them did not say how they agree
     */
    public static Agreement of(Communicator communicator, long value) {
        Endpoint endpoint = Checks.given("communicator", communicator).endpoint();
        endpoint.handle();
        endpoint.state().ensureNotCapturing("agreement");
        Group.refuse("agreement");
        if (endpoint.failure() == null) {
            communicator.revoke();
        }
        Meeting meeting = endpoint.meeting();
        SortedMap<Integer, Long> left = meeting == null
                ? ofProcesses(endpoint, value)
                : meeting.accords()
                        .agree(
                                endpoint.rank(),
                                value,
                                Called.in(endpoint.toString(), WHERE).toString(),
                                endpoint.config().timeout().toMillis());
        return new Agreement(List.copyOf(left.keySet()), List.copyOf(left.values()), endpoint.ranks());
    }

    private static SortedMap<Integer, Long> ofProcesses(Endpoint endpoint, long value) {
        PeerPlace place = endpoint.elsewhere();
        if (place == null || !place.isBase()) {
            throw new IllegalStateException("agreement: expected a communicator of all processes that are left, got "
                    + endpoint + ", which was split from one");
        }
        RankFailure failure = Objects.requireNonNull(endpoint.failure());
        List<Integer> missed = failure.waiting() == null ? List.of() : place.processes(failure.ranks());
        String why = String.valueOf(
                failure.exception(Called.in(endpoint.toString(), WHERE)).getMessage());
        PeerAgreement.Outcome outcome = place.peers()
                .agree(new PeerAgreement.Proposal(
                        place.base(), missed, why, value, endpoint.config().timeout()));
        if (outcome == null) {
            throw new IllegalStateException("agreement: expected processes that can reach each other, got " + endpoint
                    + ", opened without UniqueId.agreeThrough; start again from a saved state");
        }
        SortedMap<Integer, Long> left = new TreeMap<>();
        outcome.left().forEach((process, said) -> left.put(place.rank(process), said));
        return left;
    }

    /** Returns the ranks that are not left. */
    public int[] excluded() {
        return IntStream.range(0, of).filter(rank -> !ranks.contains(rank)).toArray();
    }

    /** Returns the first rank that has said the largest value, as a communicator numbers it that was shrunk to those that are left. */
    public int placeOfLargest() {
        int place = 0;
        for (int i = 1; i < values.size(); i++) {
            place = values.get(i) > values.get(place) ? i : place;
        }
        return place;
    }
}
