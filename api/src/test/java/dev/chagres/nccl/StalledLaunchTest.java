package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.sharding.RankJvms;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A process whose thread stays inside one call, behind calls of NCCL's to which another rank does not come. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class StalledLaunchTest {
    @TempDir
    private Path folder;

    @Test
    void itIsToldWhoDoesNotCome() throws Exception {
        DevicesNeeded.assume(2);
        try (RankJvms jvms = new RankJvms(folder, 2, StalledProgram.class, "1500")) {
            jvms.awaitEnd(0, 3);
            String last = jvms.last(0);
            assertTrue(last.startsWith("ranks [1] "), last);
            assertTrue(last.endsWith("rank 1 did not come"), last);
        }
    }

    @Test
    void whoGoesOnHasNotStalled() throws InterruptedException {
        Stall stall = new Stall();
        long now = System.nanoTime();
        Thread asleep = Thread.ofPlatform().start(() -> {
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        });
        while (asleep.getState() != Thread.State.TIMED_WAITING) {
            Thread.onSpinWait();
        }
        assertTrue(stall.hasEnded(asleep, now, 800)); // nothing was seen before
        for (int look = 1; look <= 8; look++) {
            assertFalse(stall.hasEnded(asleep, now + look * 100, 800));
        }
        asleep.interrupt();
        asleep.join();
        assertFalse(stall.hasEnded(asleep, now + 850, 800)); // no look yet
        assertTrue(stall.hasEnded(asleep, now + 900, 800));
    }
}
