package dev.chagres.nccl;

import dev.chagres.DType;
import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * A collective or transfer that a rank has called.
 *
 * <p>Threading: immutable.
 *
 * @param number counts the calls of all communicators of the rank, from 0
 * @param communicator its name
 * @param rank the caller's number in it
 * @param ranks N
 * @param sequence counts the communicator's collectives from 1, the same on each rank; for a transfer it counts the transfers between its
 *     two ranks in that direction
 * @param operation what was called
 * @param elements the count for NCCL: C of {@link Communicator}'s methods; for {@link Operation#LAUNCH} the number of calls
 * @param dtype of the elements
 * @param reduction {@code SUM} and so on, or {@code pre-multiplied sum}; null if nothing is reduced
 * @param other the root, or the peer of a transfer; -1 if there is none
 * @param stream CUDA's handle of the stream; 0 for a split
 * @param captured whether it was captured in a graph, which runs it later
 * @param entered when the rank called it
 * @param enqueued when it had been passed to NCCL; null when it was not
 * @param completed when the rank knew that it was done: on the reference when it was enqueued, else when {@link
 *     Communicator#synchronize} returned next for its stream; null when that is not known
 */
public record RecordedCall(
        long number,
        String communicator,
        int rank,
        int ranks,
        long sequence,
        Operation operation,
        long elements,
        DType dtype,
        @Nullable String reduction,
        int other,
        long stream,
        boolean captured,
        Instant entered,
        @Nullable Instant enqueued,
        @Nullable Instant completed) {
    /** Returns the call without its times: {@code send of 6 BFLOAT16 to rank 1, call 1 of world}. */
    @Override
    public String toString() {
        String what = switch (operation) {
            case SPLIT -> "";
            case LAUNCH -> " of " + elements + " recorded calls";
            default -> " of " + elements + " " + dtype;
        };
        String end = switch (operation) {
            case SEND, REDUCE, GATHER -> " to rank " + other;
            case RECEIVE, BROADCAST, SCATTER -> " from rank " + other;
            default -> "";
        };
        return operation + what + end + (reduction == null ? "" : ", " + reduction) + ", call " + sequence + " of "
                + communicator;
    }
}
