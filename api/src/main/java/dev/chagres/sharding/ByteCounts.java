package dev.chagres.sharding;

import dev.chagres.Tensor;

/**
 * Adds up the bytes of collectives.
 *
 * <p>Threading: the device's thread.
 */
final class ByteCounts {
    private long allGather;
    private long reduceScatter;
    private long allReduce;

    void allGather(Tensor whole) {
        allGather += whole.byteSize();
    }

    void reduceScatter(Tensor whole) {
        reduceScatter += whole.byteSize();
    }

    void allReduce(Tensor whole) {
        allReduce += whole.byteSize();
    }

    /** Returns the sums since the last call. */
    CollectiveBytes take() {
        CollectiveBytes sums = new CollectiveBytes(allGather, reduceScatter, allReduce);
        allGather = 0;
        reduceScatter = 0;
        allReduce = 0;
        return sums;
    }
}
