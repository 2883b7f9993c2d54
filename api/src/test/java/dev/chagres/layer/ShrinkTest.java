package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.Safetensors;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import dev.chagres.sharding.ZeroStage;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
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
    private static final int STEPS = 8;
    private static final float RATE = 1e-3f;
    private static final CommunicatorConfig CONFIG =
            CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(20));

    @TempDir
    private Path folder;

    /** Where a rank fails in a step. */
    enum Moment {
        BEFORE_THE_SUMS,
        AFTER_SOME_SUMS,
        /** Others may have completed the step. */
        AFTER_THE_SUMS,
        /** Does not fail, but learns of others before it has completed the step. */
        LAGS,
        SILENT
    }

    /** A rank that is to fail. */
    record Victim(int rank, int step, Moment moment) {}

    /** A model that trains, on as many ranks as its strategy has at present. */
    private static final class Training implements AutoCloseable {
        private final SmallModel model;
        private final AdamW optimizer;
        private final Pass pass;
        private final GradientNorm norm;
        private final Scope scope;
        private final Tensor labelled;
        private final Stream stream;
        private final List<Victim> victims;
        private final int world;
        private final float[] losses = new float[STEPS];
        private DataParallel strategy;

        Training(Rank rank, DType dtype, List<Victim> victims) {
            this.victims = victims;
            world = rank.index();
            Device device = rank.device();
            stream = device.stream();
            model = new SmallModel(device, dtype, 0.1f, UnaryOperator.identity(), plan -> {});
            strategy = DataParallel.of(model.parameters, rank.communicator(), 1);
            optimizer = new AdamW(model.parameters, AdamW.Config.standard());
            pass = Pass.training(device);
            norm = new GradientNorm(model.parameters, 1);
            scope = device.openScope();
            labelled = scope.tensor(DType.INT32, 1);
            strategy.follow(pass);
        }

        private State state() {
            return State.of(model.parameters.state(), optimizer.state());
        }

        private boolean fails(int step, Moment moment) {
            return victims.contains(new Victim(world, step, moment));
        }

        private void fail(int step, Moment moment) {
            if (fails(step, moment)) {
                throw new IllegalStateException("rank " + world + " " + moment);
            }
        }

        private void step(int step) throws InterruptedException {
            Communicator communicator = strategy.communicator();
            fail(step, Moment.BEFORE_THE_SUMS);
            if (fails(step, Moment.SILENT)) {
                assertTrue(othersGoOn.await(60, TimeUnit.SECONDS));
                throw new IllegalStateException("rank " + world + " was silent");
            }
            int[] lengths = {3 + communicator.rank(), 5};
            int[][] batch = SmallModel.batch(100L * step + communicator.rank(), lengths);
            int count = 0;
            for (int label : batch[1]) {
                count += label >= 0 ? 1 : 0;
            }
            labelled.set(stream, count);
            strategy.sumOverRanks(labelled);
            pass.begin();
            strategy.lastMicroBatch();
            pass.seed(7, step, communicator.rank());
            Tensor logits = model.logits(pass, batch[0], lengths);
            Tensor loss = model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), labelled, pass);
            float value = loss.toFloats(stream)[0];
            model.backward(pass);
            fail(step, Moment.AFTER_SOME_SUMS);
            strategy.sumGradients();
            if (fails(step, Moment.LAGS)) {
                Thread.sleep(500);
            }
            // @start region="step"
            strategy.awaitGradients(); // a failure is thrown here, and the weights stay as they were
            norm.compute();
            optimizer.step(RATE, norm);
            // @end
            losses[step] = value;
            fail(step, Moment.AFTER_THE_SUMS);
        }

        /** Trains, without ranks that fail meanwhile; returns the step after the last failure. */
        private int train(Path file) throws InterruptedException {
            int begun = 0;
            while (strategy.completedSteps() < STEPS) {
                try {
                    step((int) strategy.completedSteps());
                    // @start region="shrink"
                } catch (RankFailedException failed) {
                    strategy = strategy.shrink(optimizer);
                    // @end
                    othersGoOn.countDown();
                    begun = (int) strategy.completedSteps();
                    if (strategy.communicator().rank() == 0) {
                        Safetensors.save(file, state(), stream, Map.of());
                    }
                }
            }
            return begun;
        }

        private void close(AutoCloseable... all) {
            for (AutoCloseable one : all) {
                try {
                    one.close();
                } catch (Exception failure) {
                    throw new AssertionError(failure);
                }
            }
        }

        @Override
        public void close() {
            close(strategy, scope, pass, optimizer, model);
        }
    }

    private static volatile CountDownLatch othersGoOn = new CountDownLatch(1);

    /** What a rank has after training. */
    record Trained(int begun, float[] losses, float[][] weights) {}

    private Trained train(Rank rank, DType dtype, List<Victim> victims) throws InterruptedException {
        try (Training training = new Training(rank, dtype, victims)) {
            int begun = training.train(folder.resolve("left.safetensors"));
            return new Trained(begun, training.losses, weights(training));
        }
    }

    private static float[][] weights(Training training) {
        return training.model.parameters.all().stream()
                .map(parameter -> parameter.weight().toFloats(training.stream))
                .toArray(float[][]::new);
    }

    /** Trains from a saved state. */
    private Trained resume(Rank rank, DType dtype, int begun) throws InterruptedException {
        try (Training training = new Training(rank, dtype, List.of())) {
            Safetensors.load(folder.resolve("left.safetensors"), training.state(), training.stream);
            for (int step = begun; step < STEPS; step++) {
                training.step(step);
            }
            return new Trained(begun, training.losses, weights(training));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "2, 0, BEFORE_THE_SUMS, FLOAT32",
        "3, 0, AFTER_SOME_SUMS, FLOAT32",
        "3, 1, AFTER_THE_SUMS, BFLOAT16",
        "4, 3, BEFORE_THE_SUMS, BFLOAT16",
        "3, 2, SILENT, FLOAT32"
    })
    void thoseThatAreLeftGoOnAsARunWithThatManyRanks(int ranks, int victim, Moment moment, DType dtype) {
        DevicesNeeded.assume(ranks);
        othersGoOn = new CountDownLatch(1);
        CommunicatorConfig config = moment == Moment.SILENT ? CONFIG.withTimeout(Duration.ofMillis(1500)) : CONFIG;
        List<Trained> left = Ranks.local(ranks)
                .withConfig(config)
                .run(rank -> train(rank, dtype, List.of(new Victim(victim, 3, moment))));
        assertEquals(ranks - 1, left.size());
        int begun = left.getFirst().begun;
        assertTrue(begun == 3 || begun == 4, "went on from step " + begun);
        compare(left, begun, dtype);
    }

    private void compare(List<Trained> left, int begun, DType dtype) {
        List<Trained> expected = Ranks.local(left.size()).run(rank -> resume(rank, dtype, begun));
        for (int rank = 0; rank < left.size(); rank++) {
            assertEquals(begun, left.get(rank).begun);
            for (int step = begun; step < STEPS; step++) {
                assertEquals(expected.get(rank).losses[step], left.get(rank).losses[step], "step " + step);
            }
            for (int i = 0; i < expected.get(rank).weights.length; i++) {
                assertArrayEquals(expected.get(rank).weights[i], left.get(rank).weights[i]);
            }
        }
    }

    @Test
    void whoHasNotCompletedTheNewestStepIsGivenIt() {
        DevicesNeeded.assume(3);
        List<Victim> victims = List.of(new Victim(1, 3, Moment.AFTER_THE_SUMS), new Victim(0, 3, Moment.LAGS));
        List<Trained> left = Ranks.local(3).withConfig(CONFIG).run(rank -> train(rank, DType.BFLOAT16, victims));
        assertEquals(4, left.getFirst().begun);
        compare(left, 4, DType.BFLOAT16);
    }

    @Test
    void theyGoOnTwice() {
        DevicesNeeded.assume(4);
        List<Victim> victims =
                List.of(new Victim(1, 2, Moment.AFTER_SOME_SUMS), new Victim(2, 5, Moment.BEFORE_THE_SUMS));
        List<Trained> left = Ranks.local(4).withConfig(CONFIG).run(rank -> train(rank, DType.FLOAT32, victims));
        assertEquals(2, left.size());
        compare(left, left.getFirst().begun, DType.FLOAT32);
    }

    @Test
    void oneThatIsLeftGoesOnAlone() {
        DevicesNeeded.assume(3);
        List<Victim> victims =
                List.of(new Victim(0, 2, Moment.BEFORE_THE_SUMS), new Victim(1, 2, Moment.BEFORE_THE_SUMS));
        List<Trained> left = Ranks.local(3).withConfig(CONFIG).run(rank -> train(rank, DType.FLOAT32, victims));
        assertEquals(1, left.size());
        compare(left, left.getFirst().begun, DType.FLOAT32);
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(CONFIG).each(rank -> {
                    try (Training training = new Training(rank, DType.FLOAT32, List.of());
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
            try (Training training = new Training(rank, DType.FLOAT32, List.of())) {
                training.strategy.sumGradients();
                training.optimizer.step(RATE);
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
                assertTrue(text.endsWith("\nnobody else has them: start again from a saved state"), text);
                model.parameters.all().forEach(parameter -> assertTrue(text.contains(parameter.name()), text));
                assertThrown(
                        IllegalArgumentException.class,
                        "ranks: expected ranks from 0 to 1, got [2]",
                        () -> strategy.explainLoss(List.of(2)));
            }
        });
    }
}
