package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.util.List;
import java.util.SortedMap;
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
    /** Copies the lists. */
    public Agreement {
        ranks = List.copyOf(ranks);
        values = List.copyOf(values);
    }

    /**
     * Revokes the communicator, and waits until each of its ranks has called this, has ended, or has been missed for the timeout. A rank that
     * comes after that is left out.
     *
     * @param value what this rank tells the others
     * @throws RankFailedException when the others have gone on without this rank
     * @throws IllegalStateException when the communicator is closed, its ranks are no threads of one program, a stream of the device
     *     captures, or inside {@link Communicator#group}
     */
    public static Agreement of(Communicator communicator, long value) {
        Endpoint endpoint = Checks.given("communicator", communicator).endpoint();
        Meeting meeting = endpoint.meeting();
        if (meeting == null) {
            throw new IllegalStateException("agreement: expected ranks that are threads of one program, got " + endpoint
                    + ", whose ranks are processes; start again from a saved state");
        }
        if (endpoint.failure() == null) {
            communicator.revoke();
        }
        SortedMap<Integer, Long> left = meeting.accords()
                .agree(
                        endpoint.rank(),
                        value,
                        endpoint + ", in an agreement",
                        endpoint.config().timeout().toMillis());
        return new Agreement(List.copyOf(left.keySet()), List.copyOf(left.values()), endpoint.ranks());
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
