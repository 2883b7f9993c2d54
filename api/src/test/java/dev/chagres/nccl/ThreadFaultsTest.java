package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.FaultyRank.Fault;
import dev.chagres.nccl.FaultyRank.Injection;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Random faults of a rank that is a thread, while 2 to 8 ranks call collectives or train, every other time with calls that are polled: each time
 * every other rank is told which rank it was, in time, and nothing is left behind. The seed is printed; {@code -Dchagres.test.seed} draws the same faults again.
 */
@Tag("L0")
@Tag("L2")
class ThreadFaultsTest {
    /** How long a rank may be silent: beyond what eight ranks on two cores, or GPUs that load kernels, take for a step. */
    private static final Duration SILENCE =
            Provider.current() == Provider.REFERENCE ? Duration.ofMillis(1_500) : Duration.ofSeconds(6);

    private static final Duration PATIENT = Duration.ofSeconds(30);
    /** 2 s are promised; a busy machine may take longer to run a thread at all. */
    private static final double MOST_SECONDS = 5;

    private static final long HANGS_SECONDS = 40;
    private static final Pattern CALLED = Pattern.compile(
            "communicator \"\\w+\", rank \\d of \\d, (?:in (\\w+.*?) waited \\d+ ms|\\d+ ms after (\\w+.*?)): (.*)",
            Pattern.DOTALL);

    /** What a run has come to. */
    private static final class Outcome {
        private final @Nullable Throwable[] heard;
        private final long[] nanos;
        private final AtomicLong injected = new AtomicLong();
        private volatile @Nullable Throwable run;
        /** What a run before that hangs has left; this one is judged by itself. */
        private final int watchedBefore = Watchdog.watched();

        private final Set<Thread> ranksBefore = ranksAlive();

        private Outcome(int ranks) {
            heard = new Throwable[ranks];
            nanos = new long[ranks];
        }
    }

    @ParameterizedTest
    @CsvSource({
        "THROWS_BEFORE, 30",
        "THROWS_INSIDE, 30",
        "THROWS_AFTER, 25",
        "IS_SILENT, 15",
        "CLOSES, 15",
        "GIVES_OTHER_COUNT, 13",
        "GIVES_OTHER_TYPE, 13"
    })
    void everyOtherRankIsToldWhoFailed(Fault fault, int times) throws Exception {
        DevicesNeeded.assume(2);
        long seed = Long.getLong("chagres.test.seed", new Random().nextLong());
        System.out.println("chagres.test.seed=" + seed + " " + fault);
        SplittableRandom random = new SplittableRandom(seed);
        DetectionTimes detected = new DetectionTimes(fault.name());
        for (int i = 0; i < FaultyRank.times(times); i++) {
            Injection injection = Injection.draw(random, fault);
            CallMode mode = CallMode.values()[i % 2];
            try {
                check(injection, run(injection, mode), detected);
            } catch (Throwable failure) {
                throw new AssertionError(
                        "injection " + i + " of seed " + seed + ": " + injection + " " + mode, failure);
            }
        }
        System.out.println(detected);
    }

    private static Outcome run(Injection injection, CallMode mode) throws InterruptedException {
        Outcome outcome = new Outcome(injection.ranks());
        CountDownLatch others = new CountDownLatch(injection.ranks() - 1);
        CommunicatorConfig config = CommunicatorConfig.standard()
                .withTimeout(injection.fault() == Fault.IS_SILENT ? SILENCE : PATIENT)
                .withChecks(injection.checks())
                .withCallMode(mode);
        Thread run = Thread.ofPlatform().daemon().name("injection").start(() -> {
            try {
                Ranks.local(injection.ranks()).withConfig(config).each(rank -> {
                    try {
                        new FaultyRank(rank, injection, others, () -> outcome.injected.set(System.nanoTime())).run();
                    } catch (Throwable failure) {
                        outcome.heard[rank.index()] = failure;
                        throw failure;
                    } finally {
                        outcome.nanos[rank.index()] = System.nanoTime();
                        if (rank.index() != injection.victim()) {
                            others.countDown();
                        }
                    }
                });
            } catch (Throwable failure) {
                outcome.run = failure;
            }
        });
        if (!run.join(Duration.ofSeconds(HANGS_SECONDS))) {
            throw new AssertionError("it hangs" + stacks());
        }
        return outcome;
    }

    private static String stacks() {
        StringBuilder stacks = new StringBuilder();
        for (Map.Entry<Thread, StackTraceElement[]> thread :
                Thread.getAllStackTraces().entrySet()) {
            stacks.append('\n').append(thread.getKey());
            Arrays.stream(thread.getValue())
                    .forEach(line -> stacks.append("\n    ").append(line));
        }
        return stacks.toString();
    }

    private static void check(Injection injection, Outcome outcome, DetectionTimes detected)
            throws InterruptedException {
        double most = injection.fault() == Fault.IS_SILENT ? SILENCE.toMillis() / 1e3 + MOST_SECONDS : MOST_SECONDS;
        RankFailedException run = assertInstanceOf(RankFailedException.class, outcome.run);
        for (int rank = 0; rank < injection.ranks(); rank++) {
            if (rank == injection.victim()) {
                continue;
            }
            Throwable heard = outcome.heard[rank];
            if (heard == null) {
                throw new AssertionError("rank " + rank + " has ended without an error, or not at all" + stacks());
            }
            String text = String.valueOf(heard.getMessage());
            if (injection.fault().needsFullChecks()) {
                assertInstanceOf(IllegalStateException.class, heard, text);
                checkDifference(injection, text);
            } else {
                RankFailedException failure = assertInstanceOf(RankFailedException.class, heard, text);
                assertEquals(List.of(injection.victim()), failure.ranks(), "rank " + rank + ": " + text);
                checkText(injection, failure, text);
            }
            double seconds = (outcome.nanos[rank] - outcome.injected.get()) / 1e9;
            detected.add(seconds);
            assertTrue(seconds < most, "rank " + rank + " after " + seconds + " s: " + text);
        }
        if (!injection.fault().needsFullChecks()) {
            assertEquals(List.of(injection.victim()), run.ranks(), run.getMessage());
        }
        checkNothingIsLeft(outcome);
    }

    private static void checkText(Injection injection, RankFailedException failure, String text) {
        Matcher matcher = CALLED.matcher(text);
        assertTrue(matcher.matches(), text);
        assertEquals(matcher.group(1) != null ? matcher.group(1) : matcher.group(2), failure.collective(), text);
        Duration waited = failure.waited();
        assertTrue(waited != null && !waited.isNegative(), text + ": " + waited);
        String expected = "rank " + injection.victim()
                + switch (injection.fault()) {
                    case IS_SILENT -> " did not come";
                    case CLOSES -> " has finished or closed its communicator, and will not call";
                    default -> " failed: " + FaultyRank.Ill.class.getName() + ": it is ill";
                };
        assertEquals(expected, matcher.group(3), text);
    }

    /** All others say the same. */
    private static void checkDifference(Injection injection, String text) {
        String[] said = text.substring(text.indexOf("got rank 0: ") + 4).split("; ");
        assertEquals(injection.ranks(), said.length, text);
        for (int rank = 0; rank < said.length; rank++) {
            String other = injection.fault() == Fault.GIVES_OTHER_COUNT ? "5 INT32" : "4 FLOAT32";
            String elements = rank == injection.victim() ? other : "4 INT32";
            assertEquals("rank " + rank + ": allReduce of " + elements + ", SUM", said[rank], text);
        }
    }

    /** Memory, streams and communicators are counted by the leak report; here are threads, and who is watched. */
    private static void checkNothingIsLeft(Outcome outcome) throws InterruptedException {
        int watched = Watchdog.watched();
        assertTrue(watched <= outcome.watchedBefore, watched + " communicators are watched");
        for (int look = 0; !outcome.ranksBefore.containsAll(ranksAlive()); look++) {
            assertTrue(look < 1000, "a rank's thread lives on");
            TimeUnit.MILLISECONDS.sleep(1);
        }
    }

    private static Set<Thread> ranksAlive() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("rank-"))
                .collect(Collectors.toSet());
    }
}
