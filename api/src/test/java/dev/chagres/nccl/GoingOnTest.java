package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.GoingOnRank.Left;
import dev.chagres.nccl.GoingOnRank.Place;
import dev.chagres.nccl.ProcessFaultsTest.Signal;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Random faults of one of 2 to 8 ranks that train, every other time with calls that are polled, after which all others go on, with the same weights. The seed is printed; {@code
 * -Dchagres.test.seed} draws the same faults again.
 */
@Tag("L0")
@Tag("L2")
@Timeout(1800)
class GoingOnTest {
    private static final Duration SILENCE =
            Provider.current() == Provider.REFERENCE ? Duration.ofSeconds(3) : Duration.ofSeconds(6);

    private static final Duration PATIENT = Duration.ofSeconds(30);
    /** Processes begin within it; once they have, it passes in a tenth of that. */
    private static final String STOP_MILLIS = Provider.current() == Provider.REFERENCE ? "40000" : "80000";

    @TempDir
    private Path folder;

    /** What a rank does. */
    enum Fault {
        THROWS,
        IS_SILENT
    }

    private static SplittableRandom random(Object what) {
        long seed = Long.getLong("chagres.test.seed", new Random().nextLong());
        System.out.println("chagres.test.seed=" + seed + " " + what);
        return new SplittableRandom(seed);
    }

    @ParameterizedTest
    @CsvSource({"THROWS, 20", "IS_SILENT, 3"})
    void theOtherThreadsGoOn(Fault fault, int times) {
        DevicesNeeded.assume(2);
        SplittableRandom random = random(fault);
        for (int i = 0; i < FaultyRank.times(times); i++) {
            int ranks = FaultyRank.drawRanks(random, 8);
            int victim = random.nextInt(ranks);
            int step = random.nextInt(4);
            Place place = Place.values()[random.nextInt(Place.values().length)];
            CallMode mode = CallMode.values()[i % 2];
            String what = fault + " " + i + ": rank " + victim + " of " + ranks + " in step " + step + " " + place + " "
                    + mode;
            CountDownLatch others = new CountDownLatch(ranks - 1);
            // A rank whose strategy is not made yet when another one fails has nothing to go on with.
            CountDownLatch made = new CountDownLatch(ranks);
            List<Left> left = Ranks.local(ranks)
                    .withConfig(CommunicatorConfig.standard()
                            .withTimeout(fault == Fault.THROWS ? PATIENT : SILENCE)
                            .withCallMode(mode))
                    .run(rank -> {
                        boolean isVictim = rank.index() == victim;
                        Left result = new GoingOnRank(rank, (at, where) -> {
                                    if (at == 0 && where == Place.BEFORE) {
                                        made.countDown();
                                    }
                                    if (isVictim && at == step && where == place) {
                                        made.await();
                                        if (fault == Fault.IS_SILENT && !others.await(60, TimeUnit.SECONDS)) {
                                            throw new AssertionError("the others have not ended");
                                        }
                                        throw new FaultyRank.Ill();
                                    }
                                })
                                .run();
                        others.countDown();
                        return result;
                    });
            check(left, ranks - 1, what);
        }
    }

    private static void check(List<Left> left, int ranks, String what) {
        assertEquals(ranks, left.size(), what);
        for (Left one : left) {
            assertEquals(left.getFirst(), one, what);
            assertEquals(ranks, one.ranks(), what);
        }
    }

    /** Longer than ranks have that wait for something else, in each of two failures: an interrupt would end what they go on with. */
    @Test
    void ranksThatComputeForLongGoOnTwice() {
        DevicesNeeded.assume(4);
        List<Integer> left = Ranks.local(4).run(rank -> {
            if (rank.index() == 0) {
                throw new FaultyRank.Ill();
            }
            Communicator all = rank.communicator();
            try (Communicator three =
                    all.shrink(all.config(), Agreement.of(all, 0).excluded())) {
                if (rank.index() == 3) {
                    throw new FaultyRank.Ill();
                }
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(2500);
                while (System.nanoTime() < end) {
                    Thread.onSpinWait();
                }
                try (Communicator two = three.shrink(
                                three.config(), Agreement.of(three, 0).excluded());
                        Scope scope = rank.device().openScope()) {
                    Stream stream = rank.device().stream();
                    Tensor one = scope.tensor(DType.INT32, 1);
                    one.set(stream, 1);
                    two.allReduce(one, one, Reduction.SUM, stream);
                    return one.toInts(stream)[0];
                }
            }
        });
        assertEquals(List.of(2, 2), left);
    }

    enum Ending {
        THROWS,
        ENDS,
        CLOSES
    }

    /** The others agree once more, and do not wait for the timeout. */
    @ParameterizedTest
    @EnumSource
    void oneThatEndsBetweenAgreementAndShrinkIsLeftOut(Ending ending) {
        DevicesNeeded.assume(4);
        CountDownLatch agreed = new CountDownLatch(3);
        CountDownLatch done = new CountDownLatch(2);
        List<String> told = Collections.synchronizedList(new ArrayList<>());
        List<Integer> left = Ranks.local(4).run(rank -> {
            if (rank.index() == 0) {
                throw new FaultyRank.Ill();
            }
            Communicator all = rank.communicator();
            Agreement three = Agreement.of(all, 0);
            agreed.countDown();
            if (rank.index() == 1) {
                while (agreed.getCount() > 0) {
                    Thread.onSpinWait(); // A rank that waits for a latch is interrupted soon after a failure.
                }
                switch (ending) {
                    case THROWS -> throw new FaultyRank.Ill();
                    case ENDS -> {
                        return 0;
                    }
                    case CLOSES -> {
                        all.close();
                        done.await();
                        return 0;
                    }
                }
            }
            RankFailedException failed =
                    assertThrows(RankFailedException.class, () -> all.shrink(all.config(), three.excluded()));
            told.add(String.valueOf(failed.getMessage()));
            try (Communicator two =
                    all.shrink(all.config(), Agreement.of(all, 0).excluded())) {
                done.countDown();
                return two.ranks();
            }
        });
        assertEquals(List.of(2, 2), left.subList(left.size() - 2, left.size()));
        assertTrue(
                told.stream().allMatch(text -> text.matches(".*(it is ill|has finished or closed its communicator).*")),
                told::toString);
    }

    /** Rank 0 of a pair that is stopped, and not gone, may go on by itself: the other one does not. */
    @ParameterizedTest
    @CsvSource({"KILL, 5", "STOP, 1"})
    void theOtherProcessesGoOn(Signal signal, int times) throws Exception {
        DevicesNeeded.assume(3);
        SplittableRandom random = random(signal);
        for (int i = 0; i < FaultyRank.times(times); i++) {
            int ranks = Math.max(signal == Signal.STOP ? 3 : 2, FaultyRank.drawRanks(random, 4));
            int victim = random.nextInt(ranks);
            CallMode mode = CallMode.values()[i % 2];
            String what = signal + " " + i + ": rank " + victim + " of " + ranks + " " + mode;
            try (RankJvms jvms = new RankJvms(
                    folder, ranks, GoingOnProgram.class, signal == Signal.STOP ? STOP_MILLIS : "600000", mode.name())) {
                jvms.await("begun");
                TimeUnit.MICROSECONDS.sleep(random.nextInt(30_000));
                ProcessFaultsTest.signal(signal, jvms.process(victim));
                String common = "";
                for (int rank = 0; rank < ranks; rank++) {
                    if (rank != victim) {
                        jvms.awaitEnd(rank, 0);
                        common = common.isEmpty() ? jvms.last(rank) : common;
                        assertEquals(common, jvms.last(rank), what);
                    }
                }
                assertEquals(0, common.indexOf("Left[ranks=" + (ranks - 1) + ","), what + ", " + common);
            }
        }
    }
}
