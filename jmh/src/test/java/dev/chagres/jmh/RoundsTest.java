package dev.chagres.jmh;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Threads that work in rounds see each other's failures, whenever these come. */
@Tag("L0")
@Timeout(value = 30, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class RoundsTest {
    private static final Duration HANGS = Duration.ofSeconds(20);

    private final Rounds rounds = new Rounds(3);

    @Test
    void allWorkInEachRoundUntilTheEnd() throws InterruptedException {
        AtomicInteger done = new AtomicInteger();
        Thread first = follow(done::incrementAndGet);
        Thread second = follow(done::incrementAndGet);
        rounds.meet();
        for (int round = 1; round <= 3; round++) {
            rounds.meet();
            rounds.meet();
            assertEquals(2 * round, done.get());
        }
        rounds.end();
        assertTrue(first.join(HANGS) && second.join(HANGS), "they return");
        assertEquals(6, done.get());
    }

    /** The thread that drives is at work when another one fails, and comes to wait for it later. */
    @Test
    void aFailureIsSeenByWhoComesLater() throws InterruptedException {
        IllegalStateException thrown = new IllegalStateException("fails");
        Thread waits = follow(() -> {});
        Thread fails = follow(() -> {
            throw thrown;
        });
        rounds.meet();
        beginRound(thrown);
        assertTrue(fails.join(HANGS) && waits.join(HANGS), "nobody waits for the one that failed");
        for (int i = 0; i < 2; i++) {
            IllegalStateException seen = assertThrows(IllegalStateException.class, rounds::meet);
            assertEquals("expected ranks that do as they are told, got a failure", seen.getMessage());
            assertSame(thrown, seen.getCause(), "not what followed from it");
        }
        assertThrows(IllegalStateException.class, rounds::end);
    }

    /** The round's work may fail before this thread has seen that it begins. */
    private void beginRound(IllegalStateException thrown) {
        try {
            rounds.meet();
        } catch (IllegalStateException early) {
            assertSame(thrown, early.getCause());
        }
    }

    private Thread follow(Runnable work) {
        return Thread.ofPlatform().daemon().start(() -> {
            try {
                rounds.follow(work);
            } catch (IllegalStateException failed) {
                rounds.fail(failed);
            }
        });
    }
}
