package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.BatchSource;
import dev.chagres.batch.DataPosition;
import dev.chagres.batch.SequencePacker;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.Evaluation;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import picocli.CommandLine;

@Tag("L0")
@Timeout(60)
class TrainingRunTest {
    private final FakeModel model = new FakeModel();

    private static BatchSource open(FastaSource source, int window) {
        var shape = new BatchShape(BatchLayout.PACKED, 512, 256);
        return new BatchSource(
                new SequencePacker(shape, new MaskedProteins(new ShuffledSequences(source, 1, window))), 3);
    }

    private static BatchSource shipped() {
        return open(FastaSource.shipped(), 1 << 20);
    }

    private static TrainingRun run(
            Training model,
            BatchSource batches,
            TrainingRun.LearningRate rate,
            double peakFlops,
            Consumer<StepMetrics> reported) {
        return new TrainingRun(model, batches, rate, peakFlops, Wording.OPTIONS, List.of(Callback.eachStep(reported)));
    }

    @Test
    void theNextBatchIsUploadedAndTheLastStepReadWhileAStepRuns() throws InterruptedException {
        try (BatchSource batches = shipped()) {
            run(model, batches, step -> 1, Double.NaN, step -> {}).run(3);
        }
        assertEquals(
                "[upload0, step0, upload1, step1, upload2, result0, step2, result1, result2]", model.calls.toString());
    }

    /** Else the ranks that have a batch would make a step that this one does not make. */
    @Test
    void aRankWithoutABatchTellsTheOthers() throws InterruptedException {
        try (BatchSource batches = shipped()) {
            model.onStep = batches::stop;
            assertEquals(
                    1, run(model, batches, step -> 1, Double.NaN, step -> {}).run(9));
        }
        assertEquals(List.of(true, false), model.wishes);
    }

    @Test
    void aRankWithABatchStopsWithTheOthers() throws InterruptedException {
        try (BatchSource batches = shipped()) {
            model.onStep = () -> model.othersGoOn = false;
            assertEquals(
                    1, run(model, batches, step -> 1, Double.NaN, step -> {}).run(9));
        }
        assertEquals(List.of(true, true), model.wishes);
        assertEquals("[upload0, step0, result0]", model.calls.toString());
    }

    /** A step is read, so that nothing spoilt is saved, before the state that it has made is. */
    @Test
    void theStateIsSavedBetweenSteps() throws InterruptedException {
        var options = new TrainOptions();
        new CommandLine(options).parseArgs("--save=x", "--save-every=2");
        TrainingPlan plan = options.plan(false, 1);
        for (int steps : new int[] {3, 4}) {
            var fresh = new FakeModel();
            try (BatchSource batches = shipped()) {
                var run = run(fresh, batches, step -> 1, Double.NaN, step -> {});
                run.add(saver(plan));
                assertEquals(steps - 1, run.run(new SavedRun(1, DataPosition.START), steps));
            }
            assertEquals(
                    steps == 3
                            ? "[upload0, step0, upload1, result0, save1, step1, result1, save2]"
                            : "[upload0, step0, upload1, result0, save1, step1, upload2, step2, result1, result2, save3]",
                    fresh.calls.toString());
            assertTrue(fresh.saved.getFirst() > 0 && fresh.saved.getLast() > fresh.saved.getFirst());
        }
    }

    @Test
    void aRunThatIsStoppedSavesItsLastStep() throws InterruptedException {
        var options = new TrainOptions();
        new CommandLine(options).parseArgs("--save=x");
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> {});
            run.add(saver(options.plan(false, 1)));
            model.onStep = run::stop;
            assertEquals(1, run.run(100));
        }
        assertEquals("[upload0, step0, result0, save1]", model.calls.toString());
    }

    private static Evaluation heldOut() {
        return Evaluation.of(
                () -> new MaskedProteins(new FastaSequences(FastaSource.shipped())),
                new BatchShape(BatchLayout.PACKED, 512, 256));
    }

    /** The evaluation under way is left, and the state saved. */
    @Test
    void aRunThatIsStoppedWhileItEvaluatesSavesItsState() throws InterruptedException {
        var evaluated = new ArrayList<Integer>();
        try (BatchSource batches = shipped()) {
            var run = saving(batches, step -> {});
            run.add(heldOut().withEvery(2));
            run.add(new Callback() {
                @Override
                public void onEvaluation(TrainingRun of, Evaluation.Result result) {
                    evaluated.add(result.step());
                    assertEquals(2, result.loss(), 1e-9);
                    assertEquals(398, result.sequences());
                }
            });
            model.onEvaluation = () -> {
                if (evaluated.size() == 1) {
                    run.stop();
                }
            };
            assertEquals(4, run.run(100));
        }
        assertEquals(List.of(2), evaluated);
        assertEquals("[result3, evaluate4, save4]", lastCalls(3));
    }

    @Test
    void aStateIsEvaluatedAtACheckpointAlone() {
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> {});
            run.add(new Callback() {
                @Override
                public void onStep(TrainingRun of, StepMetrics step) {
                    of.evaluate(heldOut());
                }
            });
            assertEquals(
                    "evaluate: expected a call of onCheckpoint, where the state is whole",
                    assertThrows(IllegalStateException.class, () -> run.run(3)).getMessage());
        }
    }

    private static Checkpoints saver(TrainingPlan plan) {
        return Objects.requireNonNull(plan.saving().checkpoints());
    }

    private TrainingRun saving(BatchSource batches, Consumer<StepMetrics> reported) {
        var options = new TrainOptions();
        new CommandLine(options).parseArgs("--save=x");
        var run = run(model, batches, step -> 1, Double.NaN, reported);
        run.add(saver(options.plan(false, 1)));
        return run;
    }

    /** The step under way is true though it can no longer be told; other ranks make it, too. */
    @Test
    void aReportThatCannotBeWrittenEndsTheRunWithItsState() {
        var told = new ArrayList<Integer>();
        var full = new UncheckedIOException(new IOException("No space left on device"));
        try (BatchSource batches = shipped()) {
            var run = saving(batches, step -> {
                told.add(step.step());
                if (step.step() == 2) {
                    throw full;
                }
            });
            assertSame(full, assertThrows(UncheckedIOException.class, () -> run.run(100)));
        }
        assertEquals(List.of(1, 2), told);
        assertEquals(List.of(true, true, true, true, false), model.wishes);
        assertEquals("[result1, step3, result2, result3, save4]", lastCalls(5));
    }

    private String lastCalls(int count) {
        return model.calls
                .subList(model.calls.size() - count, model.calls.size())
                .toString();
    }

    /** As when the device has no memory for a longer batch. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aFailureThatLeavesTheStateWholeIsSavedFirst(boolean uploading) {
        var full = new IllegalStateException("no memory");
        Runnable failing = () -> {
            if (model.calls.contains("step1")) {
                model.calls.add("failure");
                throw full;
            }
        };
        if (uploading) {
            model.onUpload = failing;
        } else {
            model.onStep = () -> {
                if (model.calls.contains("step2")) {
                    failing.run();
                }
            };
        }
        try (BatchSource batches = shipped()) {
            assertSame(
                    full,
                    assertThrows(
                            IllegalStateException.class,
                            () -> saving(batches, step -> {}).run(100)));
        }
        assertEquals(
                uploading ? "[step1, failure, result0, result1, save2]" : "[result0, step2, failure, result1, save3]",
                lastCalls(5));
    }

    @Test
    void aFailureThatMayHaveChangedTheStateIsNotSaved() {
        model.onStep = () -> {
            if (model.calls.contains("step1")) {
                model.whole = false;
                throw new IllegalStateException("midway");
            }
        };
        try (BatchSource batches = shipped()) {
            assertThrows(
                    IllegalStateException.class,
                    () -> saving(batches, step -> {}).run(100));
        }
        assertEquals(List.of(), model.saved);
    }

    /** Whoever reads the error learns of both. */
    @Test
    void aSaveThatFailsAfterAnotherFailureIsToldBeside() {
        var full = new UncheckedIOException(new IOException("No space left on device"));
        model.onSave = () -> {
            throw new TrainingException("--save: cannot be written");
        };
        try (BatchSource batches = shipped()) {
            var run = saving(batches, step -> {
                throw full;
            });
            var e = assertThrows(UncheckedIOException.class, () -> run.run(100));
            assertEquals("--save: cannot be written", e.getSuppressed()[0].getMessage());
        }
        assertEquals(List.of(), model.saved);
    }

    /** What a step has spoilt is not saved over what was good. */
    @Test
    void aSpoiltStepIsNotSaved() {
        var options = new TrainOptions();
        new CommandLine(options).parseArgs("--save=x", "--save-every=1");
        model.spoilStep3 = true;
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> {});
            run.add(saver(options.plan(false, 1)));
            assertThrows(TrainingException.class, () -> run.run(100));
        }
        assertEquals(2, model.saved.size());
    }

    @Test
    void reportsEachStepOnceWithItsOwnBatch() throws InterruptedException {
        var expected = new ArrayList<String>();
        try (BatchSource batches = shipped()) {
            for (int i = 0; i < 5; i++) {
                Batch batch = batches.take();
                expected.add((i + 1) + " " + batch.tokens() + " " + i * 0.1f);
                batches.recycle(batch);
            }
        }
        var seen = new ArrayList<String>();
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> step * 0.1f, Double.NaN, step -> {
                seen.add(step.step() + " " + step.tokens() + " " + step.learningRate());
                assertTrue(step.loss() > 4 && step.loss() < 33 && step.stepMillis() > 0 && Double.isNaN(step.mfu()));
            });
            assertEquals(5, run.run(5));
        }
        assertEquals(expected, seen);
    }

    /** The last step is read without another one under way: its time must be its own all the same. */
    @Test
    void everyStepIsTimedByTheModelTheLastOneToo() throws InterruptedException {
        double peak = 1e9;
        var millis = new ArrayList<Double>();
        try (BatchSource batches = shipped()) {
            run(model, batches, step -> 1, peak, step -> {
                        millis.add(step.stepMillis());
                        assertEquals(step.tokens() / (step.stepMillis() / 1e3), step.tokensPerSecond(), 1e-9);
                        assertEquals(1e3 * step.tokensPerSecond() / peak, step.mfu(), 1e-12);
                    })
                    .run(4);
        }
        assertEquals(List.of(10.0, 20.0, 30.0, 40.0), millis);
    }

    @Test
    void stopEndsAfterTheStepUnderWay() throws InterruptedException {
        var steps = new ArrayList<Integer>();
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> steps.add(step.step()));
            model.onStep = () -> {
                if (model.calls.contains("step2")) {
                    run.stop();
                }
            };
            assertEquals(3, run.run(100));
        }
        assertEquals(List.of(1, 2, 3), steps);
    }

    @Test
    void aRunStoppedBeforeItBeganDoesNothing() throws InterruptedException {
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> {});
            run.stop();
            assertEquals(0, run.run(100));
        }
        assertEquals("[]", model.calls.toString());
    }

    @Test
    void aLossThatIsNoNumberEndsTheRunWithAdvice() {
        model.spoilStep3 = true;
        var steps = new ArrayList<Integer>();
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 0.5f, Double.NaN, step -> steps.add(step.step()));
            var e = assertThrows(TrainingException.class, () -> run.run(10));
            assertEquals("step 3: the loss is NaN at learning rate 0.5; lower --learning-rate", e.getMessage());
        }
        assertEquals(List.of(1, 2), steps);
    }

    @Test
    void skippedStepsAreReportedAndOneTakenBetweenThemCountsAnew() throws InterruptedException {
        model.lossScaling = true;
        model.overflowFrom = 4;
        var skipped = new ArrayList<Integer>();
        try (BatchSource batches = shipped()) {
            run(model, batches, step -> 0.5f, Double.NaN, step -> {
                        if (step.isSkipped()) {
                            skipped.add(step.step());
                        }
                        if (step.step() == 10) {
                            model.overflowFrom = 13;
                        }
                    })
                    .run(31);
        }
        assertEquals("[4, 5, 6, 7, 8, 9, 10", skipped.toString().substring(0, 21));
        assertTrue(skipped.contains(13) && !skipped.contains(11) && !skipped.contains(12), skipped.toString());
        assertEquals(7 + 19, skipped.size());
    }

    @Test
    void twentySkippedStepsInARowEndTheRun() {
        model.lossScaling = true;
        model.overflowFrom = 3;
        var steps = new ArrayList<Integer>();
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 0.5f, Double.NaN, step -> steps.add(step.step()));
            var e = assertThrows(TrainingException.class, () -> run.run(100));
            assertEquals(
                    "step 22: the gradients of the last 20 steps were not finite, at ever smaller loss scales; lower"
                            + " --learning-rate or take --recipe bf16",
                    e.getMessage());
        }
        assertEquals(22, steps.size());
    }

    @Test
    void withoutLossScalingAnOverflowEndsTheRun() {
        model.overflowFrom = 2;
        try (BatchSource batches = shipped()) {
            var run = run(model, batches, step -> 0.5f, Double.NaN, step -> {});
            var e = assertThrows(TrainingException.class, () -> run.run(100));
            assertEquals(
                    "step 2: the gradients' norm is Infinity at learning rate 0.5; lower --learning-rate",
                    e.getMessage());
        }
    }

    @Test
    void stepsBeforeBadDataAreReported(@TempDir Path folder) throws IOException {
        String good = (">s\n" + "A".repeat(300) + "\n").repeat(20);
        Path file = Files.writeString(folder.resolve("x.fasta"), good + ">s\nM1\n");
        var steps = new ArrayList<Integer>();
        try (BatchSource batches = open(FastaSource.of(file), 1)) {
            var run = run(model, batches, step -> 1, Double.NaN, step -> steps.add(step.step()));
            var e = assertThrows(FastaException.class, () -> run.run(100));
            assertTrue(e.getMessage().startsWith(file + ":42: '1' at column 2"), e.getMessage());
        }
        assertEquals(List.of(1, 2, 3, 4, 5, 6, 7, 8, 9), steps);
        try (BatchSource batches = open(FastaSource.of(file), 1)) {
            var run = saving(batches, step -> {});
            assertThrows(FastaException.class, () -> run.run(100));
        }
        assertEquals("save18", model.calls.getLast());
    }

    /** Were anything made in each step, no window could be free of it; what the JVM itself makes once is let pass. */
    @Test
    void aSteadyStepMakesNoObject() throws InterruptedException {
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        var totals = new Totals();
        long[] allocated = new long[10];
        model.noting = false;
        try (BatchSource batches = shipped()) {
            run(model, batches, step -> 1, Double.NaN, step -> {
                        totals.add(step);
                        if (step.step() % 2_000 == 0) {
                            allocated[step.step() / 2_000 - 1] = threads.getCurrentThreadAllocatedBytes();
                        }
                    })
                    .run(20_000);
        }
        long least = Long.MAX_VALUE;
        for (int i = 1; i < allocated.length; i++) {
            least = Math.min(least, allocated[i] - allocated[i - 1]);
        }
        assertEquals(0, least);
    }
}
