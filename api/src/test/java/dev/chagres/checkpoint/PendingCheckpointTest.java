package dev.chagres.checkpoint;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BackgroundReads;
import dev.chagres.io.SafetensorsException;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Checkpoints that are written while training goes on have the state of the call, and the bytes of those that are waited for. */
@Tag("L0")
@Timeout(120)
class PendingCheckpointTest {
    @TempDir
    private Path folder;

    /** A model of one rank. */
    private static final class Small implements AutoCloseable {
        final Device device = Device.open();
        final Parameters parameters;
        final AdamW optimizer;
        final RunState state;
        private final GradientNorm norm;
        private long number = 3;

        Small(int features) {
            parameters = Parameters.allocate(device, plan(features), DType.FLOAT32, 7);
            optimizer = new AdamW(parameters, AdamW.Config.standard());
            norm = new GradientNorm(parameters, 1);
            state = RunState.of(parameters)
                    .optimizer(optimizer)
                    .with(new State.Builder()
                            .number("mine", () -> number, value -> number = value, 100)
                            .build());
        }

        void step() {
            parameters.completeGradients();
            parameters.all().forEach(one -> one.gradient().copyFrom(device.stream(), one.weight()));
            norm.compute();
            optimizer.step(0.1f, norm);
            number++;
        }

        float[] weights() {
            return parameters.all().getFirst().weight().toFloats(device.stream());
        }

        /** After a save, which has taken the pinned memory: lets the thread that writes wait for the latch. */
        CountDownLatch hold() {
            return PendingCheckpointTest.hold(device);
        }

        @Override
        public void close() {
            optimizer.close();
            parameters.close();
            device.close();
        }
    }

    private static CountDownLatch hold(Device device) {
        CountDownLatch latch = new CountDownLatch(1);
        var _ = BackgroundReads.of(Inside.state(device)).submit(() -> {
            latch.await();
            return true;
        });
        return latch;
    }

    private static ModelPlan plan(int features) {
        ModelPlan plan = new ModelPlan();
        new Linear(features, features, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    private static Map<String, byte[]> files(Path run) throws IOException {
        Map<String, byte[]> files = new TreeMap<>();
        try (Stream<Path> all = Files.walk(run)) {
            for (Path file : all.filter(Files::isRegularFile).toList()) {
                files.put(run.relativize(file).toString(), Files.readAllBytes(file));
            }
        }
        return files;
    }

    private void assertSameFiles(Path one, Path other) throws IOException {
        Map<String, byte[]> expected = files(one);
        Map<String, byte[]> actual = files(other);
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, bytes) -> assertArrayEquals(bytes, actual.get(name), name));
    }

    private static void awaitBlocked(Thread thread) {
        while (thread.getState() != Thread.State.WAITING) {
            Thread.onSpinWait();
        }
    }

    @Test
    void example() throws IOException {
        Path run = folder.resolve("run");
        Path waited = folder.resolve("waited");
        try (Small model = new Small(16);
                CheckpointFolder checkpoints = CheckpointFolder.of(run)) {
            RunState state = model.state;
            model.step();
            state.save(CheckpointFolder.of(waited), 100, Map.of("purpose", "an example"));
            // @start region="pending"
            PendingCheckpoint pending = state.saveInBackground(checkpoints, 100, Map.of("purpose", "an example"));
            for (int step = 100; step < 103; step++) {
                model.step(); // the first one waits for the copies
                if (!pending.isBusy() && !pending.isOver()) {
                    pending.advance();
                }
            }
            pending.publish();
            // @end
            assertTrue(pending.isOver());
            assertTrue(pending.advance());
        }
        assertSameFiles(waited, run);
    }

    @Test
    void theNextStepAndTheNextLaunchWaitForTheCopies() throws IOException {
        Path waited = folder.resolve("waited");
        for (String way : List.of("step", "launch", "load", "close")) {
            Path run = folder.resolve(way);
            try (Small model = new Small(16)) {
                model.step();
                model.step();
                Graph graph = way.equals("launch") ? model.device.stream().capture(model::step) : null;
                model.number = 5;
                model.state.save(CheckpointFolder.of(waited), 2, Map.of());
                CountDownLatch latch = model.hold();
                PendingCheckpoint pending = model.state.saveInBackground(CheckpointFolder.of(run), 2, Map.of());
                assertTrue(pending.isBusy());
                Thread device = Thread.currentThread();
                Thread.ofPlatform().start(() -> {
                    awaitBlocked(device);
                    latch.countDown();
                });
                switch (way) {
                    case "step" -> model.step();
                    case "launch" -> {
                        graph.launch();
                        graph.close();
                    }
                    case "load" -> model.state.load(CheckpointFolder.of(waited).step(2));
                    default -> {
                        model.optimizer.close();
                        model.parameters.close();
                    }
                }
                assertEquals(0, latch.getCount(), "it did not wait");
                pending.publish();
            }
            assertSameFiles(waited, run);
        }
    }

    @Test
    void aStateLargerThanThePinnedMemoryIsWrittenInParts() throws IOException {
        Path run = folder.resolve("run");
        Path waited = folder.resolve("waited");
        try (Small model = new Small(2200)) { // 19 MB a tensor, of which there are three, a block more than a half
            model.step();
            model.state.save(CheckpointFolder.of(waited), 1, Map.of());
            float[] before = model.weights();
            CheckpointFolder target = CheckpointFolder.of(run).withPinnedBytes(32 << 20);
            model.state.reserve(target);
            PendingCheckpoint pending = model.state.saveInBackground(target, 1, Map.of());
            model.step();
            assertFalse(Arrays.equals(before, model.weights()));
            pending.publish();
        }
        assertSameFiles(waited, run);
    }

    @Test
    void manyRanksWriteTheSameBytes() throws IOException {
        DevicesNeeded.assume(3);
        for (boolean background : new boolean[] {false, true}) {
            Path run = folder.resolve("background-" + background);
            Ranks.local(3).each(rank -> {
                try (Strategy strategy = FullySharded.allocate(
                                plan(16), DType.FLOAT32, 7, ZeroStage.THREE, rank.communicator());
                        AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                    RunState state = RunState.of(strategy).optimizer(optimizer);
                    if (background) {
                        PendingCheckpoint pending = state.saveInBackground(CheckpointFolder.of(run), 4, Map.of());
                        strategy.sumGradients();
                        optimizer.step(0.1f);
                        state.saveInBackground(CheckpointFolder.of(run).with(new Retention(2, 0, 0)), 5, Map.of())
                                .publish();
                        assertTrue(pending.isOver(), "the second save publishes the first");
                    } else {
                        state.save(CheckpointFolder.of(run), 4, Map.of());
                        strategy.sumGradients();
                        optimizer.step(0.1f);
                        state.save(CheckpointFolder.of(run), 5, Map.of());
                    }
                }
            });
        }
        assertSameFiles(folder.resolve("background-false"), folder.resolve("background-true"));
    }

    /** Else ranks would wait for the copies in what they tell each other at the beginning, and the device would have nothing to do. */
    @Test
    void ranksThatBeginDoNotWaitForTheCopies() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Strategy strategy =
                            FullySharded.allocate(plan(16), DType.FLOAT32, 5, ZeroStage.THREE, rank.communicator());
                    AdamW optimizer = new AdamW(strategy.parameters(), AdamW.Config.standard())) {
                RunState state = RunState.of(strategy).optimizer(optimizer);
                CheckpointFolder checkpoints = CheckpointFolder.of(folder.resolve("run"));
                state.reserve(checkpoints);
                CountDownLatch latch = hold(rank.device());
                CompletableFuture.delayedExecutor(2, TimeUnit.MINUTES).execute(latch::countDown);
                PendingCheckpoint pending = state.saveInBackground(checkpoints, 1, Map.of());
                assertEquals(1, latch.getCount(), "whoever begins does not wait for the thread that copies");
                latch.countDown();
                pending.publish();
            }
        });
    }

    @Test
    void aWriterThatFailsPublishesNothingAndTrainingGoesOn() throws IOException {
        Path run = folder.resolve("run");
        try (Small model = new Small(16)) {
            model.state.save(CheckpointFolder.of(run), 1, Map.of());
            CountDownLatch latch = model.hold();
            PendingCheckpoint pending = model.state.saveInBackground(CheckpointFolder.of(run), 2, Map.of());
            removeUnpublished(run);
            latch.countDown();
            model.step();
            SafetensorsException refused = assertThrows(SafetensorsException.class, pending::publish);
            assertTrue(
                    refused.getMessage().contains("could not be written: no such file or folder"), () -> "" + refused);
            assertTrue(pending.isOver());
            String text =
                    assertThrows(IllegalStateException.class, pending::advance).getMessage();
            assertTrue(
                    text.startsWith("advance: expected a checkpoint that can be published, got checkpoint in"), text);
            assertEquals(List.of(1L), CheckpointFolder.of(run).steps());
            model.step();
            model.state.saveInBackground(CheckpointFolder.of(run), 3, Map.of()).publish();
            assertEquals(List.of(1L, 3L), CheckpointFolder.of(run).steps());
        }
    }

    private static void removeUnpublished(Path run) throws IOException {
        try (Stream<Path> all = Files.walk(run)) {
            for (Path file : all.filter(one -> one.toString().contains(".part"))
                    .sorted(Comparator.reverseOrder())
                    .filter(one -> !one.getFileName().toString().equals(".chagres.part"))
                    .toList()) {
                Files.delete(file);
            }
        }
    }

    @Test
    void whatIsNotPublishedLeavesNothing() throws IOException {
        Path run = folder.resolve("run");
        try (Small model = new Small(16)) {
            try (PendingCheckpoint pending = model.state.saveInBackground(CheckpointFolder.of(run), 2, Map.of())) {
                assertFalse(pending.isOver());
            }
            assertEquals(Map.of().keySet(), files(run).keySet());
            model.state.saveInBackground(CheckpointFolder.of(run), 3, Map.of()); // is given up with the device
        }
        assertEquals(Map.of().keySet(), files(run).keySet());
    }

    @Test
    void fewPinnedBytesAreRefused() {
        String text = assertThrows(
                        IllegalArgumentException.class,
                        () -> CheckpointFolder.of(folder).withPinnedBytes(1 << 20))
                .getMessage();
        assertEquals("bytes: expected at least 33554432, got 1048576", text);
    }
}
