package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.launch.RankJvms;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Full checks of ranks that are processes: a difference is the same exception on each, and who does not come is named. */
@Tag("L0")
@Tag("L2")
@Timeout(600)
class ProcessFullChecksTest {
    private static final Map<String, String> FULL = Map.of("JAVA_TOOL_OPTIONS", "-Dchagres.collective.checks=full");
    private static final String SAME = ": expected the same call on every rank, got rank 0: ";

    @TempDir
    private Path folder;

    private RankJvms start(int count, String what) throws IOException {
        DevicesNeeded.assume(count);
        return new RankJvms(folder, count, FULL, FullChecksProgram.class, what);
    }

    private static String world(int number, String first, String second) {
        return "collective " + number + " of \"world\"" + SAME + first + "; rank 1: " + second + "; rank 2: " + first;
    }

    @Test
    void differencesAreTheSameErrorOnEachRank() throws Exception {
        String sum = "allReduce of 8 FLOAT32, SUM";
        String longer = "allReduce of 24 FLOAT32, SUM";
        List<String> all = List.of(
                world(1, sum, "allGather of 8 FLOAT32"),
                world(2, sum + ", shape [4, 2]", sum + ", shape [2, 4]"),
                world(3, "broadcast of 8 FLOAT32, root 0", "broadcast of 8 INT32, root 0"),
                world(4, "broadcast of 8 FLOAT32, root 0", "broadcast of 8 FLOAT32, root 1"),
                world(6, sum, "allReduce of 8 FLOAT32, MAX"),
                world(7, longer, sum),
                world(8, sum, longer));
        String transfer = "transfer 1 from rank 0 to rank 1" + SAME + "8 FLOAT32; rank 1: 24 FLOAT32";
        String part = "collective 1 of \"part\"" + SAME + sum + "; rank 1: allReduce of 8 FLOAT32, MIN";
        try (RankJvms ranks = start(3, "differences")) {
            for (int rank = 0; rank < 3; rank++) {
                ranks.awaitEnd(rank, 0);
                List<String> lines = Files.readAllLines(folder.resolve("out" + rank));
                assertEquals(all, lines.subList(0, all.size()), "rank " + rank);
                List<String> own = rank == 0 ? List.of(transfer, part) : List.of(rank == 1 ? transfer : part);
                assertEquals(own, lines.subList(all.size(), lines.size() - 2), "rank " + rank);
                assertEquals(List.of("sum 3.0", "done"), lines.subList(lines.size() - 2, lines.size()));
            }
        }
    }

    @Test
    void whoDoesNotComeIsNamed() throws Exception {
        try (RankJvms ranks = start(2, "silent")) {
            ranks.awaitEnd(0, 3);
            assertTrue(
                    ranks.last(0)
                            .matches("ranks \\[1] communicator \"world\", rank 0 of 2, in allReduce of 6 FLOAT32, SUM"
                                    + " waited \\d{4,} ms: rank 1 did not come"),
                    ranks.last(0));
        }
    }

    @Test
    void whoWaitsElsewhereIsNotNamed() throws Exception {
        try (RankJvms ranks = start(3, "elsewhere")) {
            for (int rank = 1; rank < 3; rank++) {
                ranks.awaitEnd(rank, 3);
                assertTrue(ranks.last(rank).startsWith("ranks [0] "), ranks.last(rank));
            }
            assertTrue(ranks.last(2).endsWith(": rank 0 did not come"), ranks.last(2));
        }
    }

    @Test
    void whoIsKilledIsNamedAtOnce() throws Exception {
        try (RankJvms ranks = start(3, "killed")) {
            ranks.await("begun");
            ranks.process(1).destroyForcibly();
            for (int rank = 0; rank < 3; rank += 2) {
                ranks.awaitEnd(rank, 3);
                assertTrue(
                        ranks.last(rank).matches("ranks \\[1] .*rank 1 failed: .*its process has ended.*"),
                        ranks.last(rank));
            }
        }
    }
}
