package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.launch.RankJvms;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Ranks that are processes, of which one has given NCCL a call and is in no wait that others see. */
@Tag("L0")
@Tag("L2")
@Timeout(900)
class ProcessWaitsTest {
    @TempDir
    private Path folder;

    private String waited() {
        return folder.resolve("waited").toString();
    }

    @Test
    void aRankThatDoesNotComeIsNamedToOneThatCallsNothingMore() throws Exception {
        DevicesNeeded.assume(2);
        try (RankJvms jvms = new RankJvms(folder, 2, ProcessWaitsProgram.class, "silent", waited())) {
            jvms.awaitEnd(0, 3);
            String last = jvms.last(0);
            assertTrue(last.startsWith("[1] communicator \"world\", rank 0 of 2"), last);
            assertTrue(last.contains("rank 1 did not come"), last);
        }
    }

    @Test
    void aLongPauseAfterACallThatAllHaveComeToIsNoFailure() throws Exception {
        DevicesNeeded.assume(2);
        try (RankJvms jvms = new RankJvms(folder, 2, ProcessWaitsProgram.class, "sends", waited())) {
            for (int rank = 0; rank < 2; rank++) {
                jvms.awaitEnd(rank, 0);
                assertEquals("rank " + rank + " has ended", jvms.last(rank));
            }
        }
    }
}
