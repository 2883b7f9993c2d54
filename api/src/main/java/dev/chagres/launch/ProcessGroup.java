package dev.chagres.launch;

import java.util.List;

/**
 * Processes that a program has started, one for each rank, and a way to exchange texts among them, such as the tasks of a barrier stage of
 * Spark. {@link Ranks#ofProcesses} makes ranks of them.
 *
 * <p>Threading: one thread at a time, in each process.
 */
public interface ProcessGroup {
    /** Returns which rank this process is, from 0 to N - 1. */
    int rank();

    /**
     * Returns, for each rank, the name or address by which the other processes reach its host: N names, the same in all processes. Rank 0
     * listens there.
     */
    List<String> hosts();

    /** Returns the index of this process's device among those of its host; it is ignored if the process sees only one device. */
    int device();

    /**
     * Waits for the texts of all processes and returns them in the order of ranks. Called once a run. Rank 0's text contains the secret of
     * the run: do not log it.
     *
     * @throws RuntimeException when another process does not call it
     */
    List<String> allGather(String text);
}
