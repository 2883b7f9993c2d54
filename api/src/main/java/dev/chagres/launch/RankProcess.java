package dev.chagres.launch;

/**
 * Which rank a process is, and how it finds the store.
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
     * Returns the store's address and the shared secret.
     *
     * @throws IllegalStateException when the ranks cannot meet; the text says why
     */
    RankEnvironment meet();
}
