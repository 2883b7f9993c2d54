package dev.chagres.nccl;

/**
 * Where a rank is that another one, in another process, waits for.
 *
 * <p>Threading: immutable.
 */
public enum PeerProgress {
    /** It has come, or is no part of that communicator. */
    CAME,
    /** It has not, because it waits for others itself. */
    WAITS,
    /** It has not come, and waits for nobody. */
    LATE
}
