package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.BatchSource;
import dev.chagres.batch.SequencePacker;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.trainer.Training.SaveProgress;
import dev.chagres.trainer.callback.Checkpoints;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import picocli.CommandLine;

/** When the loop begins, follows and ends checkpoints that are written while it goes on; and the clock that asks for them. */
@Tag("L0")
@Timeout(60)
class BackgroundSaveTest {
    private static final Path RUN = Path.of("run");
    private static final SafetensorsException FAILURE =
            SafetensorsException.ofRank("run: could not be written: disk full", RUN, null);

    private final FakeModel model = new FakeModel();
    private final List<String> heard = new ArrayList<>();

    private int run(int steps, Checkpoints checkpoints) throws InterruptedException {
        var shape = new BatchShape(BatchLayout.PACKED, 512, 256);
        try (BatchSource batches = new BatchSource(
                new SequencePacker(shape, new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 1, 1 << 20))),
                3)) {
            Callback listener = new Callback() {
                @Override
                public void onSaved(TrainingRun of, int step) {
                    heard.add("saved " + step + " after " + of.steps());
                }

                @Override
                public boolean onSaveFailed(TrainingRun of, int step, SafetensorsException failure) {
                    heard.add("failed " + step + " after " + of.steps());
                    return false;
                }
            };
            return new TrainingRun(model, batches, _ -> 1, Double.NaN, Wording.OPTIONS, List.of(listener, checkpoints))
                    .run(steps);
        }
    }

    @Test
    void stepsAreMadeUntilEveryRankHasWritten() throws InterruptedException {
        int[] asked = {0};
        model.begun = SaveProgress.UNDER_WAY;
        model.saving =
                () -> ++asked[0] <= 2 || asked[0] == 4; // after steps 2 and 3, and as soon as the next one is begun
        Checkpoints checkpoints = Checkpoints.in(RUN).withEvery(2);
        assertEquals(5, run(5, checkpoints));
        assertEquals(
                List.of("saved 2 after 4", "saved 4 after 5", "saved 5 after 5"),
                heard,
                "the last one is waited for, and each before the next");
        assertEquals(5, checkpoints.saved());
        assertEquals(
                3,
                model.calls.stream().filter(call -> call.startsWith("advance")).count());
    }

    @Test
    void aRunThatFailsWaitsForWhatIsUnderWay() {
        model.begun = SaveProgress.UNDER_WAY;
        model.saving = () -> true;
        model.spoilStep3 = true;
        assertThrows(TrainingException.class, () -> run(9, Checkpoints.in(RUN).withEvery(1)));
        assertEquals(List.of("saved 1 after 2", "saved 2 after 3"), heard, "that of step 3 is spoilt");
    }

    @Test
    void aFailureEndsTheRunAfterALaterStepOrNot() throws InterruptedException {
        model.begun = SaveProgress.UNDER_WAY;
        model.advanced = () -> new SaveProgress(true, FAILURE);
        Checkpoints checkpoints = Checkpoints.in(RUN).withEvery(2);
        int[] asked = {0};
        model.saving = () -> ++asked[0] == 1;
        String text =
                assertThrows(TrainingException.class, () -> run(9, checkpoints)).getMessage();
        assertEquals("--save: run: could not be written: disk full", text);
        assertEquals(List.of("failed 2 after 3", "failed 3 after 3"), heard, "the last state is tried, too");
        heard.clear();
        assertEquals(4, run(4, checkpoints.withFailure(Checkpoints.Failure.CONTINUES)));
        assertEquals(List.of("failed 2 after 2", "failed 4 after 4"), heard);
        assertEquals(0, checkpoints.saved());
    }

    @Test
    void aBlockingSaveIsPublishedBeforeTheNextStep() throws InterruptedException {
        model.begun = SaveProgress.UNDER_WAY;
        model.saving = () -> true;
        run(4, Checkpoints.in(RUN).withEvery(2).withMode(Checkpoints.Mode.BLOCKING));
        assertEquals(List.of("saved 2 after 2", "saved 4 after 4"), heard);
    }

    @Test
    void aClockAsksForCheckpoints() throws InterruptedException {
        Instant[] now = {Instant.parse("2026-01-01T00:00:00Z")};
        model.onStep = () -> now[0] = now[0].plusSeconds(600);
        Checkpoints checkpoints = Checkpoints.in(RUN).withEvery(Duration.ofMinutes(30), () -> now[0]);
        run(8, checkpoints);
        assertEquals(List.of("saved 3 after 3", "saved 6 after 6", "saved 8 after 8"), heard);
        heard.clear();
        model.clock = () -> false; // of the first rank: no time has passed
        run(8, checkpoints);
        assertEquals(List.of("saved 8 after 8"), heard);
    }

    @Test
    void optionsSayWhenAndHow() {
        assertEquals(
                new SavingPlan.Times(500, null, Checkpoints.Mode.BACKGROUND, Checkpoints.Failure.ENDS_RUN, 512L << 20),
                times("--save=x/", "--save-every=500"));
        assertEquals(
                Duration.ofSeconds(90), times("--save=x/", "--save-every=90s").interval());
        assertEquals(
                Duration.ofMinutes(30), times("--save=x", "--save-every=30m").interval());
        SavingPlan.Times hours =
                times("--save=x/", "--save-every=2h", "--save-mode=blocking", "--save-failure=continues");
        assertEquals(
                new SavingPlan.Times(
                        0, Duration.ofHours(2), Checkpoints.Mode.BLOCKING, Checkpoints.Failure.CONTINUES, 512L << 20),
                hours);
        assertRefused(
                "expected steps such as 500, or a time such as 90s, 30m or 2h, got 30 min",
                "--save=x/",
                "--save-every=30 min");
        assertRefused("--save-every: expected a time of at least 1s, got none", "--save=x/", "--save-every=0m");
        assertRefused("--save-every: expected --save beside it, which is written, got none", "--save-every=3m");
        assertRefused("--save-mode: expected --save DIR/ beside it", "--save=x", "--save-mode=blocking");
        assertRefused("--save-failure: expected --save DIR/ beside it", "--save=x", "--save-failure=continues");
        assertEquals(16L << 30, times("--save=x/", "--save-buffer=16G").buffer());
        assertEquals(64L << 20, times("--save=x/", "--save-buffer=64MiB").buffer());
        assertRefused("expected a size such as 512M or 16G, got 16", "--save=x/", "--save-buffer=16");
        assertRefused("--save-buffer: expected at least 32M, got 31M", "--save=x/", "--save-buffer=31M");
        assertRefused(
                "--save-buffer: expected --save DIR/ beside it, and background saves, got --save-mode blocking",
                "--save=x/",
                "--save-mode=blocking",
                "--save-buffer=1G");
        assertRefused(
                "--save-buffer: expected --save DIR/ beside it, and background saves, got x",
                "--save=x",
                "--save-buffer=1G");
        assertRefused("expected one of background, blocking, got async", "--save=x/", "--save-mode=async");
    }

    private static SavingPlan.Times times(String... arguments) {
        var options = new TrainOptions();
        new CommandLine(options).parseArgs(arguments);
        options.check();
        return options.plan(false, 1).saving().times();
    }

    private static void assertRefused(String expected, String... arguments) {
        String text =
                assertThrows(RuntimeException.class, () -> times(arguments)).getMessage();
        assertTrue(text.contains(expected), text);
    }
}
