package dev.chagres.nccl;

import java.util.List;

/**
 * The calls for which a rank waits: those that it has given to NCCL, or one that is compared first.
 *
 * <p>Threading: asked by any thread.
 */
interface Awaited {
    /** Returns the ranks whose calls make one with what this one waits for. */
    List<Integer> awaited();

    /** Returns those of them that have not come. */
    List<Integer> missing();
}
