package dev.chagres.internal.ranks;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;

/**
 * Exchanges some numbers among all ranks, and waits for them.
 *
 * <p>Threading: the device's thread.
 */
public final class AllGatherLongs {
    private AllGatherLongs() {}

    /** Returns the numbers of all ranks, those of rank 0 first; each rank calls it with equally many. */
    public static long[] ofAll(Communicator ranks, Stream stream, long... own) {
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor mine = scope.tensor(DType.INT64, own.length);
            Tensor all = scope.tensor(DType.INT64, (long) own.length * ranks.ranks());
            mine.set(stream, own);
            ranks.allGather(mine, all, stream);
            ranks.synchronize(stream);
            return all.toLongs(stream);
        }
    }

    /** Returns the first rank whose number is another than that of rank 0; -1 where all have the same. */
    public static int firstOther(Communicator ranks, Stream stream, long own) {
        long[] all = ofAll(ranks, stream, own);
        for (int rank = 1; rank < all.length; rank++) {
            if (all[rank] != all[0]) {
                return rank;
            }
        }
        return -1;
    }
}
