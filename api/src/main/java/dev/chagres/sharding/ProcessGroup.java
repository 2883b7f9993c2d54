package dev.chagres.sharding;

import java.util.List;

/**
 * Processes that a program has started, one a rank, and how it passes texts among them: the tasks of a barrier stage of Spark, for
 * example. {@link Ranks#ofProcesses} makes ranks of them.
 *
 * <p>Threading: one thread at a time, in each process.
 */
public interface ProcessGroup {
    /** Returns which rank this process is, from 0 to N - 1. */
    int rank();

    /**
     * Returns, for each rank, the name or address by which the other processes reach its host: N of them, the same in all processes.
     * Rank 0 listens there.
     */
    List<String> hosts();

    /** Returns which device is this process's, counted among those of its host; it does not count where a process sees one device alone. */
    int device();

    /**
     * Gives each process the texts of all, in the order of ranks, and waits for them. Called once a run. Rank 0's text has the
     * secret of the run: show it nowhere.
     *
     * @throws RuntimeException when another process does not come
     */
    List<String> allGather(String text);
}
