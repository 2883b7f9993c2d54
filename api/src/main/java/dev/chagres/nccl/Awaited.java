package dev.chagres.nccl;

import java.util.List;

/**
 * The calls for which a rank waits: those that it has passed to NCCL, or one that is compared first.
 *
 * <p>Threading: asked by any thread.
 */
interface Awaited {
    /** Returns the ranks whose calls make one with what this one waits for. */
    List<Integer> awaited();

    /** Returns the peers that have not reached them. */
    List<Integer> missing();
}
