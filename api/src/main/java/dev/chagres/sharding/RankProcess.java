package dev.chagres.sharding;

/**
 * Which rank a process is, and how it comes to know where all meet.
 *
 * <p>Threading: immutable.
 */
interface RankProcess {
    /** Returns r, from 0 to N - 1. */
    int rank();

    /** Returns N. */
    int count();

    /** Returns which of the ranks on this host, and so which device. */
    int localRank();

    /** Returns who started the process. */
    String launcher();

    /**
     * Returns where the ranks meet, and what they prove to each other that they know.
     *
     * @throws IllegalStateException when the ranks cannot meet; the text says why
     */
    RankEnvironment meet();
}
