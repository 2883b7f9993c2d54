package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.nccl.Operation;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class RankTotalsTest {
    private static String told(Operation operation, long bytes) {
        var totals = new Totals.RankTotals(3);
        for (int i = 0; i < 2; i++) {
            totals.add(new RankStep(3, 750, Map.of(operation, bytes)));
        }
        return totals.toString();
    }

    @Test
    void whatWasMovedIsNeverNothing() {
        assertEquals("rank 3: 1.5 s, allReduce 8 B", told(Operation.ALL_REDUCE, 4));
        assertEquals("rank 3: 1.5 s, allReduce 1022 B", told(Operation.ALL_REDUCE, 511));
        assertEquals("rank 3: 1.5 s, broadcast 1.0 KiB", told(Operation.BROADCAST, 512));
        assertEquals("rank 3: 1.5 s, broadcast 16.0 KiB", told(Operation.BROADCAST, 8192));
        assertEquals("rank 3: 1.5 s, allGather 1.0 MiB", told(Operation.ALL_GATHER, 1 << 19));
        assertEquals("rank 3: 1.5 s, send 2,048.0 MiB", told(Operation.SEND, 1L << 30));
    }
}
