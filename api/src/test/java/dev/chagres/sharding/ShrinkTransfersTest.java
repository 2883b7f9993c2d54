package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.FlightRecorder;
import dev.chagres.nccl.Operation;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.RecordedCall;
import dev.chagres.parameter.State;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.sharding.ShrinkTraining.Moment;
import dev.chagres.sharding.ShrinkTraining.Victim;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What data-parallel ranks send each other when they go on: only ranks that have not completed the newest step receive its state. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class ShrinkTransfersTest {
    private static final int STEP = 2;
    private static final CommunicatorConfig CONFIG =
            CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(20));

    /** What a rank has called in shrink, and its weights behind that. */
    private record Sent(List<String> calls, float[][] weights) {}

    private static void await(CountDownLatch latch) throws InterruptedException {
        assertTrue(latch.await(60, TimeUnit.SECONDS));
    }

    /** Rank 1 fails when ranks 2 and 3 have made the step, and rank 0 has not. */
    private static final class RankZeroIsBehind {
        private static final List<Victim> VICTIMS = List.of(
                new Victim(0, STEP, Moment.LAGS),
                new Victim(1, STEP, Moment.AFTER_ANOTHERS_STEP),
                new Victim(2, STEP, Moment.COMPLETES),
                new Victim(3, STEP, Moment.COMPLETES));

        private final CountDownLatch completed = new CountDownLatch(2);
        private final CountDownLatch failing = new CountDownLatch(1);

        private void fail(Victim victim) throws InterruptedException {
            switch (victim.moment()) {
                case LAGS -> {
                    await(failing);
                    Thread.sleep(300); // until the failure is known
                }
                case COMPLETES -> completed.countDown();
                default -> {
                    await(completed);
                    failing.countDown();
                    throw new IllegalStateException("rank 1 fails");
                }
            }
        }

        private ShrinkTraining training(Rank rank) {
            return new ShrinkTraining(rank, DType.FLOAT32, VICTIMS, this::fail);
        }
    }

    private static void trainUntilAFailure(ShrinkTraining training) throws InterruptedException {
        while (true) {
            try {
                training.step((int) training.strategy.completedSteps());
            } catch (RankFailedException failed) {
                return;
            }
        }
    }

    /** Returns what {@code shrink} has called, without the split that makes the communicator of the gradients. */
    private static Sent shrink(Rank rank, ShrinkTraining training, State... others) {
        List<RecordedCall> before = FlightRecorder.of(rank.communicator()).calls();
        training.strategy = training.strategy.shrink(training.optimizer, others);
        List<RecordedCall> all = FlightRecorder.of(rank.communicator()).calls();
        List<String> calls = all.subList(before.size(), all.size()).stream()
                .filter(call -> call.operation() != Operation.SPLIT)
                .map(call -> call.operation().name() + " " + call.other())
                .toList();
        return new Sent(calls, training.weights());
    }

    private static void assertSameWeights(List<Sent> told) {
        for (Sent each : told) {
            float[][] first = told.getFirst().weights();
            for (int i = 0; i < first.length; i++) {
                assertArrayEquals(first[i], each.weights()[i]);
            }
        }
    }

    private static void assertAre(int count, String call, Sent told) {
        assertEquals(count, told.calls().size());
        assertEquals(Set.of(call), Set.copyOf(told.calls()));
    }

    @Test
    void onlyARankThatIsBehindReceives() {
        DevicesNeeded.assume(4);
        RankZeroIsBehind failure = new RankZeroIsBehind();
        List<Sent> told = Ranks.local(4).withConfig(CONFIG).run(rank -> {
            try (ShrinkTraining training = failure.training(rank)) {
                trainUntilAFailure(training);
                Sent sent = shrink(rank, training);
                assertEquals(STEP + 1, training.strategy.completedSteps());
                training.step(STEP + 1);
                return sent;
            }
        });
        int count = told.getFirst().calls().size();
        assertTrue(count > 1);
        assertAre(count, "RECEIVE 1", told.get(0));
        assertAre(count, "SEND 0", told.get(1));
        assertEquals(List.of(), told.get(2).calls());
        assertSameWeights(told);
    }

    /** Fails where the ranks with the newest state would send it, when {@code shrunkElsewhere} says that rank 3 has gone on. */
    private static void failInShrink(ShrinkTraining training, CountDownLatch shrunkElsewhere)
            throws InterruptedException {
        Communicator world = training.strategy.communicator();
        Agreement left = Agreement.of(world, training.strategy.completedSteps());
        Communicator shrunk = world.shrink(world.config(), left.excluded());
        shrunk.split(0, shrunk.rank(), shrunk.config());
        await(shrunkElsewhere);
        throw new IllegalStateException("rank 2 fails");
    }

    /** Rank 3, whose state nobody has written to, sends the newest state when it has learned that rank 2 failed before it had sent it. */
    @Test
    void anotherRankSendsWhenTheFirstOneFails() {
        DevicesNeeded.assume(4);
        RankZeroIsBehind failure = new RankZeroIsBehind();
        CountDownLatch shrunk = new CountDownLatch(1);
        List<Sent> told = Ranks.local(4).withConfig(CONFIG).run(rank -> {
            try (ShrinkTraining training = failure.training(rank)) {
                trainUntilAFailure(training);
                if (rank.index() == 2) {
                    failInShrink(training, shrunk);
                }
                Sent sent = shrink(rank, training);
                if (rank.index() == 3) {
                    shrunk.countDown();
                    assertEquals(List.of(), sent.calls());
                    trainUntilAFailure(training);
                    sent = shrink(rank, training);
                }
                assertEquals(STEP + 1, training.strategy.completedSteps());
                training.step(STEP + 1);
                return sent;
            }
        });
        assertEquals(2, told.size());
        int count = told.get(1).calls().size();
        assertTrue(count > 1);
        assertAre(count, "SEND 0", told.get(1));
        assertSameWeights(told);
    }

    /** Rank 2 fails when all have begun the step, for it has the sum of their labels. */
    private static ShrinkTraining failingTogether(Rank rank) {
        List<Victim> victims = List.of(new Victim(2, STEP, Moment.BEFORE_BACKWARD));
        return new ShrinkTraining(rank, DType.BFLOAT16, victims, victim -> {
            throw new IllegalStateException("rank 2 fails");
        });
    }

    @Test
    void ranksAtTheSameStepSendNothing() {
        DevicesNeeded.assume(3);
        List<Sent> told = Ranks.local(3).withConfig(CONFIG).run(rank -> {
            try (ShrinkTraining training = failingTogether(rank)) {
                trainUntilAFailure(training);
                Sent sent = shrink(rank, training);
                training.step(STEP);
                return sent;
            }
        });
        assertEquals(List.of(), told.get(0).calls());
        assertEquals(List.of(), told.get(1).calls());
        assertSameWeights(told);
    }

    @Test
    void reducedScalesAreBroadcastOnce() {
        DevicesNeeded.assume(3);
        Ranks.local(3).withConfig(CONFIG).run(rank -> {
            try (ShrinkTraining training = failingTogether(rank)) {
                State scales = training.withRecipe(DelayedScaling.standard());
                trainUntilAFailure(training);
                Sent sent = shrink(rank, training, scales);
                long broadcasts = sent.calls().stream()
                        .filter(call -> call.equals("BROADCAST 0"))
                        .count();
                assertEquals(scales.tensors().size() + 1, broadcasts); // and the numbers
                assertEquals(
                        0,
                        sent.calls().stream()
                                .filter(call -> call.contains("SEND"))
                                .count());
                training.step(STEP);
                return rank.index();
            }
        });
    }
}
