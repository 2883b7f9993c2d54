package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.CaptureException;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.ShrinkTraining.Moment;
import dev.chagres.sharding.ShrinkTraining.Trained;
import dev.chagres.sharding.ShrinkTraining.Victim;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Data-parallel ranks that go on without some that have failed: as a run with that many ranks goes on from the same state. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class ShrinkTest {
    private static final CommunicatorConfig CONFIG =
            CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(20));

    private static volatile CountDownLatch othersGoOn = new CountDownLatch(1);
    private static final CountDownLatch completed = new CountDownLatch(1);

    @TempDir
    private Path folder;

    private static void fail(Victim victim) throws InterruptedException {
        switch (victim.moment()) {
            case LAGS -> Thread.sleep(500);
            case COMPLETES -> completed.countDown();
            case AFTER_ANOTHERS_STEP -> {
                assertTrue(completed.await(60, TimeUnit.SECONDS));
                throw new IllegalStateException("rank " + victim.rank() + " fails after another one's step");
            }
            case SILENT -> {
                assertTrue(othersGoOn.await(60, TimeUnit.SECONDS));
                throw new IllegalStateException("rank " + victim.rank() + " was silent");
            }
            default -> throw new IllegalStateException("rank " + victim.rank() + " " + victim.moment());
        }
    }

    private Trained train(Rank rank, DType dtype, List<Victim> victims) throws InterruptedException {
        try (ShrinkTraining training = new ShrinkTraining(rank, dtype, victims, ShrinkTest::fail)) {
            return training.train(folder.resolve("left.safetensors"), othersGoOn::countDown);
        }
    }

    private Trained resume(Rank rank, DType dtype, int begun) throws InterruptedException {
        try (ShrinkTraining training = new ShrinkTraining(rank, dtype, List.of(), ShrinkTest::fail)) {
            return training.resume(folder.resolve("left.safetensors"), begun);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, 0, BEFORE_THE_SUMS, FLOAT32",
        "3, 0, AFTER_SOME_SUMS, FLOAT32",
        "3, 2, BEFORE_BACKWARD, FLOAT32",
        "3, 1, IN_BACKWARD, FLOAT32",
        "3, 1, AFTER_THE_SUMS, BFLOAT16",
        "4, 3, BEFORE_THE_SUMS, BFLOAT16",
        "3, 2, SILENT, FLOAT32"
    })
    void thoseThatAreLeftGoOnAsARunWithThatManyRanks(int ranks, int victim, Moment moment, DType dtype) {
        DevicesNeeded.assume(ranks);
        othersGoOn = new CountDownLatch(1);
        CommunicatorConfig config = moment == Moment.SILENT ? CONFIG.withTimeout(Duration.ofSeconds(3)) : CONFIG;
        List<Trained> left = Ranks.local(ranks)
                .withConfig(config)
                .run(rank -> train(rank, dtype, List.of(new Victim(victim, 3, moment))));
        assertEquals(ranks - 1, left.size());
        int begun = left.getFirst().begun();
        // Others may learn of a failure before the sums while they still wait for those of the step before.
        assertTrue(begun == 3 || begun == (moment == Moment.BEFORE_THE_SUMS ? 2 : 4), "went on from step " + begun);
        compare(left, begun, dtype);
    }

    private void compare(List<Trained> left, int begun, DType dtype) {
        List<Trained> expected = Ranks.local(left.size()).run(rank -> resume(rank, dtype, begun));
        for (int rank = 0; rank < left.size(); rank++) {
            assertEquals(begun, left.get(rank).begun());
            for (int step = begun; step < ShrinkTraining.STEPS; step++) {
                assertEquals(expected.get(rank).losses()[step], left.get(rank).losses()[step], "step " + step);
            }
            for (int i = 0; i < expected.get(rank).weights().length; i++) {
                assertArrayEquals(
                        expected.get(rank).weights()[i], left.get(rank).weights()[i]);
            }
        }
    }

    @Test
    void whoHasNotCompletedTheNewestStepIsGivenIt() {
        DevicesNeeded.assume(3);
        List<Victim> victims = List.of(
                new Victim(0, 3, Moment.LAGS),
                new Victim(1, 3, Moment.AFTER_ANOTHERS_STEP),
                new Victim(2, 3, Moment.COMPLETES));
        List<Trained> left = Ranks.local(3).withConfig(CONFIG).run(rank -> train(rank, DType.BFLOAT16, victims));
        assertEquals(4, left.getFirst().begun());
        compare(left, 4, DType.BFLOAT16);
    }

    /** The rank that is refused has taken part in nothing: it goes on with the others when it calls shrink outside. */
    @Test
    void insideAGroupOrACaptureItIsRefusedAtOnce() {
        DevicesNeeded.assume(3);
        List<Integer> left = Ranks.local(3).withConfig(CONFIG).run(rank -> {
            List<Victim> victims = List.of(new Victim(2, 0, Moment.BEFORE_THE_SUMS));
            try (ShrinkTraining training = new ShrinkTraining(rank, DType.FLOAT32, victims, ShrinkTest::fail)) {
                if (rank.index() == 2) {
                    training.step(0);
                }
                assertThrows(RankFailedException.class, () -> training.step(0));
                if (rank.index() == 0) {
                    Communicator communicator = rank.communicator();
                    assertThrows(
                            IllegalStateException.class,
                            () -> Communicator.group(() -> training.strategy.shrink(training.optimizer)));
                    assertThrows(
                            IllegalStateException.class, () -> Communicator.group(() -> Agreement.of(communicator, 0)));
                    assertThrows(
                            CaptureException.class,
                            () -> rank.device().stream().capture(() -> training.strategy.shrink(training.optimizer)));
                }
                training.strategy = training.strategy.shrink(training.optimizer);
                return training.strategy.communicator().ranks();
            }
        });
        assertEquals(List.of(2, 2), left);
    }

    @Test
    void theyGoOnTwice() {
        DevicesNeeded.assume(4);
        List<Victim> victims =
                List.of(new Victim(1, 2, Moment.AFTER_SOME_SUMS), new Victim(2, 5, Moment.BEFORE_THE_SUMS));
        List<Trained> left = Ranks.local(4).withConfig(CONFIG).run(rank -> train(rank, DType.FLOAT32, victims));
        assertEquals(2, left.size());
        compare(left, left.getFirst().begun(), DType.FLOAT32);
    }

    @Test
    void oneThatIsLeftGoesOnAlone() {
        DevicesNeeded.assume(3);
        List<Victim> victims =
                List.of(new Victim(0, 2, Moment.BEFORE_THE_SUMS), new Victim(1, 2, Moment.BEFORE_THE_SUMS));
        List<Trained> left = Ranks.local(3).withConfig(CONFIG).run(rank -> train(rank, DType.FLOAT32, victims));
        assertEquals(1, left.size());
        compare(left, left.getFirst().begun(), DType.FLOAT32);
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(CONFIG).each(rank -> {
                    try (ShrinkTraining training =
                                    new ShrinkTraining(rank, DType.FLOAT32, List.of(), ShrinkTest::fail);
                            Parameters others = SmallModel.plain(rank.device(), DType.FLOAT32).parameters;
                            AdamW other = new AdamW(others, AdamW.Config.standard())) {
                        assertThrown(
                                IllegalArgumentException.class,
                                "optimizer: expected that of this strategy's parameters, got that of others: " + other,
                                () -> training.strategy.shrink(other));
                        assertThrown(
                                IllegalStateException.class,
                                "shrink: expected a rank that has failed, got all 2 ranks; the communicator is revoked",
                                () -> training.strategy.shrink(training.optimizer));
                        training.strategy.close();
                        throw new IllegalArgumentException("the end");
                    }
                }));
        assertEquals("the end", failure.getCause().getMessage());
        Ranks.local(1).each(rank -> {
            try (ShrinkTraining training = new ShrinkTraining(rank, DType.FLOAT32, List.of(), ShrinkTest::fail)) {
                training.strategy.sumGradients();
                training.optimizer.step(1e-3f);
                assertThrown(
                        IllegalStateException.class,
                        "shrink: expected awaitGradients() before each step of the optimizer, got a step without it, whose"
                                + " gradients may be those of a sum that failed; start again from a saved state",
                        () -> training.strategy.shrink(training.optimizer));
            }
        });
    }

    @Test
    void partsThatWentWithARankAreNamed() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            FullySharded[] made = new FullySharded[1];
            try (SmallModel model = new SmallModel(
                            rank.device(), DType.FLOAT32, 0, UnaryOperator.identity(), plan -> {}, plan -> {
                                made[0] = FullySharded.allocate(
                                        plan, DType.FLOAT32, 7, ZeroStage.THREE, rank.communicator());
                                return made[0].parameters();
                            });
                    FullySharded strategy = made[0]) {
                String text = strategy.explainLoss(List.of(1));
                assertTrue(
                        text.startsWith("with rank 1 went part 1 of 2 of the weights, masters and moments of:\n"),
                        text);
                assertTrue(text.endsWith("\nno other rank has them: start again from a saved state"), text);
                model.parameters.all().forEach(parameter -> assertTrue(text.contains(parameter.name()), text));
                assertThrown(
                        IllegalArgumentException.class,
                        "ranks: expected ranks from 0 to 1, got [2]",
                        () -> strategy.explainLoss(List.of(2)));
            }
        });
    }
}
