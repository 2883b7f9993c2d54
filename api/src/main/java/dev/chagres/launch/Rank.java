package dev.chagres.launch;

import dev.chagres.Device;
import dev.chagres.nccl.Communicator;

/**
 * A rank's own number, device and communicator of all ranks. Device and communicator are closed after the body.
 *
 * <p>Threading: the rank's own thread.
 *
 * @param index r, from 0 to N - 1
 * @param count N
 * @param device driven by the rank's thread
 * @param communicator of all ranks
 */
public record Rank(int index, int count, Device device, Communicator communicator) {
    /**
     * The work of each rank.
     *
     * <p>Threading: called on each rank's thread at the same time.
     *
     * @param <T> its result
     */
    public interface Body<T> {
        /**
         * Does the work of {@code rank}.
         *
         * @throws Exception to make the run fail
         */
        T run(Rank rank) throws Exception;
    }
}
