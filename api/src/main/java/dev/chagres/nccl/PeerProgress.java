package dev.chagres.nccl;

/**
 * The progress of a rank for which a rank in another process waits.
 *
 * <p>Threading: immutable.
 */
public enum PeerProgress {
    /** It has made the call, or is no part of that communicator. */
    CAME,
    /** It has not made the call, because it waits for others itself. */
    WAITS,
    /** It has not made the call, and waits for no other rank. */
    LATE
}
