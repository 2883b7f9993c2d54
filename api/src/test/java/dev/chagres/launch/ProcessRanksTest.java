package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Ranks that are processes, on the reference. */
@Tag("L0")
@Timeout(180)
class ProcessRanksTest {
    private static final String ENDLESS = "1000000000";
    private static final String NOBODY = "-1";

    @TempDir
    private Path folder;

    private RankJvms start(int count, String... arguments) throws IOException {
        return new RankJvms(folder, count, RankProgram.class, arguments);
    }

    @Test
    void theySumAsThreadsDo() throws Exception {
        DevicesNeeded.assume(2);
        try (RankJvms ranks = start(3, "20", NOBODY)) {
            for (int rank = 0; rank < 3; rank++) {
                ranks.awaitEnd(rank, 0);
                assertEquals("done 6.0", ranks.last(rank));
            }
        }
    }

    @Test
    void aProgramsOwnProcessesMeetThroughIt() throws Exception {
        DevicesNeeded.assume(2);
        Path texts = Files.createDirectory(folder.resolve("texts"));
        try (RankJvms ranks = start(3, "20", NOBODY, texts.toString())) {
            for (int rank = 0; rank < 3; rank++) {
                ranks.awaitEnd(rank, 0);
                assertEquals("done 6.0", ranks.last(rank));
            }
        }
    }

    @Test
    void aVariableByWhichNcclReturnsTooEarlyIsRefused() throws Exception {
        DevicesNeeded.assume(2);
        Map<String, String> variables = Map.of("NCCL_COMM_BLOCKING", "0");
        try (RankJvms ranks = new RankJvms(folder, 2, variables, RankProgram.class, "20", NOBODY)) {
            for (int rank = 0; rank < 2; rank++) {
                ranks.awaitEnd(rank, 3);
                assertEquals(
                        "ranks [" + rank + "] rank " + rank + " of 2 failed: java.lang.IllegalStateException:"
                                + " NCCL_COMM_BLOCKING: expected 1, or the variable unset, got \"0\", with which NCCL's"
                                + " calls return before they are done; start the program without it, or choose"
                                + " CallMode.NON_BLOCKING",
                        ranks.last(rank));
            }
        }
    }

    @Test
    void aRankThatThrowsIsNamedWithWhatItThrew() throws Exception {
        DevicesNeeded.assume(2);
        for (int thrower : new int[] {0, 1}) {
            try (RankJvms ranks = start(2, ENDLESS, Integer.toString(thrower))) {
                ranks.awaitEnd(thrower, 3);
                ranks.awaitEnd(1 - thrower, 3);
                assertEquals(
                        "ranks [" + thrower + "] rank " + thrower
                                + " of 2 failed: java.lang.IllegalArgumentException: it is ill",
                        ranks.last(thrower));
                String call = "allReduce of 100000 FLOAT32, SUM";
                String text = ranks.last(1 - thrower);
                assertTrue(
                        text.matches("ranks \\[" + thrower + "] communicator \"world\", rank " + (1 - thrower)
                                + " of 2, (in " + call + " waited \\d+ ms|\\d+ ms after " + call + "): rank " + thrower
                                + " failed: java.lang.IllegalArgumentException: it is ill"),
                        text);
            }
        }
    }
}
