package dev.chagres.sharding;

import dev.chagres.Device;
import dev.chagres.nccl.Communicator;

/**
 * What a rank has of its own: a number, a device and its end of the communicator of all ranks. All of it is closed after the body.
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
     * What each rank does.
     *
     * <p>Threading: called on each rank's thread at the same time.
     *
     * @param <T> its result
     */
    public interface Body<T> {
        /**
         * Does the work of {@code rank}.
         *
         * @throws Exception what the run is to fail with
         */
        T run(Rank rank) throws Exception;
    }
}
