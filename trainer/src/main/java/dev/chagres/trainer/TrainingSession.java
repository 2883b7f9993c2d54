package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchSource;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NativeException;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.text.TextException;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.EarlyStopping;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.callback.TensorBoard;
import dev.chagres.trainer.plan.ProfileOptions;
import dev.chagres.trainer.plan.StepProfile;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * One run with everything round it: data, model, report, progress, picture and summary.
 *
 * <p>Threading: confined, but for {@link #stop}, which any thread may call.
 */
final class TrainingSession {
    /** One batch with the consumer, one ready, one being filled. */
    private static final int BATCHES = 3;

    private static final double SECONDS_PER_LINE = 5;

    private final TrainingPlan plan;
    private final Platform platform;
    private final StandardOutput out;
    private final PrintStream err;
    private final RunText text;
    private final double peakFlops;
    /** Null where nothing is saved. */
    private final @Nullable Checkpoints checkpoints;

    private final Totals totals = new Totals();
    private final Totals.RecentSteps recent = new Totals.RecentSteps();
    private final LossCurve losses = new LossCurve();

    private @Nullable String explained;
    /** Steps of the run that this one goes on from. */
    private int begun;

    private @Nullable EarlyStopping earlyStopping;
    /** Sequences that are evaluated. */
    private long heldOut;

    private Evaluation.@Nullable Result evaluated;

    /** After so many steps the state was saved last; 0 for never. */
    private int saved;

    private volatile boolean stopRequested;
    private volatile @Nullable BatchSource data;
    private volatile @Nullable TrainingRun run;

    /**
     * Prepares a run.
     *
     * @param out gets the first lines and the summary
     * @param err gets the progress
     */
    TrainingSession(TrainingPlan plan, Platform platform, StandardOutput out, PrintStream err) {
        this.plan = plan;
        this.platform = platform;
        this.out = out;
        this.err = err;
        this.text = new RunText(out.text(), plan);
        this.checkpoints = plan.saving().checkpoints();
        this.peakFlops = platform.isGpu()
                ? plan.ranks()
                        * PeakRate.flopsPerSecond(
                                platform.device(), plan.setup().precision())
                : Double.NaN;
    }

    /**
     * Tries whether the state can be saved, and keeps other runs from its place until {@link #release}.
     *
     * @throws TrainingException when it cannot
     * @throws UncheckedIOException when another run writes it
     */
    void claim() {
        if (checkpoints != null) {
            TrainingRun.naming(Wording.OPTIONS, checkpoints::claim);
        }
    }

    /** Lets other runs save there. */
    void release() {
        if (checkpoints != null) {
            checkpoints.close();
        }
    }

    /**
     * Trains and writes what was asked for.
     *
     * @throws TrainingException when an output cannot be written or the numbers run away
     * @throws dev.chagres.models.data.FastaException when the data cannot be used
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     */
    void train() throws InterruptedException {
        SavedRun before = SavedRun.of(plan);
        if (before.isWhole(plan)) { // Its report and plot stay, too.
            text.nothingLeft();
            return;
        }
        try (RunFiles files = openFiles()) {
            if (files != null) {
                train(files, before);
            }
            summarize();
            if (files != null && plan.plot() != null && losses.steps() > 0) {
                files.draw(title(), losses);
                text.wrote("plot", plan.plot());
            }
        }
    }

    /** Null when the run is to stop: while the JVM ends, Java's graphics cannot begin, which says nothing of its fonts. */
    private @Nullable RunFiles openFiles() {
        try {
            return new RunFiles(plan.report(), plan.plot());
        } catch (TrainingException e) {
            if (stopRequested) {
                return null;
            }
            throw e;
        }
    }

    private void train(RunFiles files, SavedRun before) throws InterruptedException {
        try {
            makeSteps(files, before);
            files.addCounted(plan.data());
            files.publishReport();
        } catch (FastaException | TextException | TrainingException | UncheckedIOException | NativeException e) {
            tellSaved(e);
            throw files.named(e);
        } catch (RuntimeException | InterruptedException | Error e) {
            tellSaved(e);
            throw e;
        }
    }

    /** Says, before a failure is told, which state it has left. */
    private void tellSaved(Throwable failure) {
        for (Throwable second : failure.getSuppressed()) {
            err.println("train: " + second.getMessage());
        }
        if (saved > 0) {
            err.println("train: the state of step " + saved + " was saved: "
                    + plan.saving().file());
        }
    }

    private void makeSteps(RunFiles files, SavedRun before) throws InterruptedException {
        begun = before.steps();
        if (before.otherSums() != null) {
            err.println("train: --resume: "
                    + ForeignText.plain(String.valueOf(plan.saving().resumed())) + " was saved with --recipe "
                    + ForeignText.plain(before.otherSums()) + ", so products sum otherwise from here on");
        }
        String otherRates = ScheduleOptions.difference(plan, before);
        if (otherRates != null) {
            err.println("train: " + ForeignText.lines(otherRates));
        }
        try (var batches = new BatchSource(packer(before), BATCHES)) {
            data = batches;
            if (stopRequested) {
                return;
            }
            // Bad data is told before the model, which may take long to make.
            Batch first = batches.peek();
            if (first == null) {
                return;
            }
            Evaluation evaluation = evaluation();
            Path board = plan.evaluation().tensorBoard();
            try (TensorBoard tensorBoard = board == null ? null : new TensorBoard(board);
                    Training model = platform.open(plan, () -> stopRequested)) {
                try {
                    train(model, first, batches, new Followers(files, evaluation, tensorBoard), before);
                } catch (RuntimeException | InterruptedException | Error failure) {
                    model.fail(failure);
                    throw failure;
                }
            }
        }
    }

    /** What follows the steps of the run, beside the file of its state. */
    private record Followers(
            RunFiles files,
            @Nullable Evaluation evaluation,
            @Nullable TensorBoard tensorBoard) {}

    /** Returns what evaluates, whose data was read once; null where nothing is evaluated. */
    private @Nullable Evaluation evaluation() {
        TrainingData source = plan.evaluation().data();
        Evaluation made = plan.evaluation().evaluation(plan.shape());
        if (source != null && made != null) {
            source.ensureRepeatable();
            heldOut = made.check();
        }
        return made;
    }

    private void train(Training model, Batch first, BatchSource batches, Followers followers, SavedRun before)
            throws InterruptedException {
        RunFiles files = followers.files();
        RunText.RunDescription described = describe(model);
        text.announce(described);
        text.evaluates(heldOut);
        text.resumes(before);
        Map<String, String> description = checkpoints == null ? Map.of() : SavedRun.description(plan);
        Path folder = plan.start().folder();
        if (folder != null && plan.saving().resumed() == null) {
            model.begin(weights -> plan.start().model().load(weights, folder));
        }
        RecipeDifferences differences = before.load(model, plan.saving().resumed(), Wording.OPTIONS);
        if (before.otherRecipe() != null) {
            err.println("train: " + ForeignText.lines(otherRecipe(before, differences)));
        }
        files.begin(described, differences);
        requireReader();
        warmUp(model, first);
        requireReader();
        try (Progress progress = progress()) {
            loop(model, batches, callbacks(followers, progress), description, before);
        } finally {
            saved = checkpoints == null ? 0 : checkpoints.saved();
        }
    }

    private String otherRecipe(SavedRun before, RecipeDifferences differences) {
        String told =
                "--resume: " + ForeignText.plain(String.valueOf(plan.saving().resumed())) + " was saved with --recipe "
                        + before.otherRecipe();
        if (differences.isEmpty()) {
            return told + ", which keeps no scales, as --recipe " + plan.recipe() + " keeps none: nothing is left out";
        }
        return told + ": its " + differences.ignored().size() + " scales and histories are ignored, and the "
                + differences.missing().size() + " of --recipe " + plan.recipe() + " begin anew"
                + (plan.report() == null ? "" : "; the report names them");
    }

    /** Returns what packs the data that an earlier run has not taken. */
    private SequencePacker packer(SavedRun before) {
        return new SequencePacker(plan.shape(), sequences(before), plan.order(), before.data());
    }

    private TokenSequences sequences(SavedRun before) {
        TokenSequences all = plan.data().shuffled(plan.seed(), platform.windowResidues());
        try {
            before.skip(all, () -> stopRequested);
            return all;
        } catch (RuntimeException e) {
            all.close();
            throw e;
        }
    }

    private void warmUp(Training model, Batch example) {
        text.beginWarmUp(platform.isGpu());
        long began = System.nanoTime();
        try {
            model.warmUp(example, () -> stopRequested);
        } finally {
            text.endWarmUp((System.nanoTime() - began) / 1e9);
        }
    }

    /** Ends a run that nobody would hear of: standard output is closed or full, and no file was asked for. */
    private void requireReader() {
        String failure = out.newFailure();
        if (failure == null) {
            return;
        }
        if (plan.report() == null && plan.plot() == null && plan.saving().file() == null) {
            throw new TrainingException(
                    failure + "; the run ends, since nothing would be left of it: ask for --save, --report or --plot");
        }
        err.println("train: " + failure + "; training goes on for --save, --report or --plot");
    }

    private List<Callback> callbacks(Followers followers, Progress progress) {
        List<Callback> callbacks = new ArrayList<>();
        callbacks.add(report(followers.files(), progress));
        earlyStopping = plan.evaluation().earlyStopping();
        ProfileOptions.Wanted profile = plan.profile();
        StepProfile recorded = profile == null ? null : profile.callback(out.text());
        Stream.of(followers.tensorBoard(), earlyStopping, followers.evaluation(), recorded, checkpoints)
                .filter(Objects::nonNull)
                .forEach(callbacks::add);
        return callbacks;
    }

    private void loop(
            Training model,
            BatchSource batches,
            List<Callback> callbacks,
            Map<String, String> description,
            SavedRun before)
            throws InterruptedException {
        var loop = new TrainingRun(
                model, batches, step -> plan.schedule().at(step + 1), peakFlops, Wording.OPTIONS, callbacks);
        loop.describe(description);
        run = loop;
        if (stopRequested) {
            loop.stop();
        }
        loop.run(before, plan.steps());
    }

    /** Returns what tells of each step. */
    private Callback report(RunFiles files, Progress progress) {
        return new Callback() {
            @Override
            public void onStep(TrainingRun loop, StepMetrics step) {
                files.add(step, plan.measures(step.step()) ? loop.castStatistics() : List.of());
                if (Double.isFinite(step.loss())) {
                    losses.add(step.step(), step.loss());
                }
                totals.add(step);
                recent.add(step);
                progress.add(step);
            }

            @Override
            public void onEvaluation(TrainingRun loop, Evaluation.Result result) {
                evaluated = result;
                files.add(result);
                progress.add(result);
            }

            @Override
            public boolean onSaveFailed(TrainingRun loop, int step, SafetensorsException failure) {
                if (plan.saving().times().failure() == Checkpoints.Failure.CONTINUES) {
                    err.println("train: the state of step " + step + " was not saved, training goes on: "
                            + failure.getMessage());
                }
                return false;
            }

            @Override
            public void onEnd(TrainingRun loop) {
                explained = loop.explainSteps();
            }
        };
    }

    private RunText.RunDescription describe(Training model) {
        return new RunText.RunDescription(
                platform.provider(),
                platform.device(),
                platform.libraries(),
                model.parameterCount(),
                plan,
                model.windows());
    }

    private Progress progress() {
        return TerminalLine.isErrorStream()
                ? Progress.bar(begun, plan.steps(), peakFlops)
                : Progress.lines(err, plan.steps(), peakFlops, SECONDS_PER_LINE);
    }

    private String title() {
        return plan.start().model().kind() + " " + plan.start().name() + ", " + plan.recipe() + ", "
                + platform.provider() + ", seed " + plan.seed();
    }

    private void summarize() {
        if (stopRequested) {
            text.stopped(begun + totals.steps());
        }
        if (totals.steps() == 0) {
            return;
        }
        text.summarize(totals, recent.lastHalf(), losses, peakFlops);
        if (earlyStopping != null) {
            earlyStopping.reason().ifPresent(why -> text.stoppedEarly(begun + totals.steps(), why));
        }
        if (evaluated != null) {
            text.evaluated(evaluated);
        }
        if (explained != null) {
            text.explainSteps(explained);
        }
        text.counted(plan.data());
        if (plan.report() != null) {
            text.wrote("report", plan.report());
        }
        if (plan.evaluation().tensorBoard() != null) {
            text.wrote("TensorBoard", plan.evaluation().tensorBoard());
        }
        if (saved > 0 && plan.saving().file() != null) {
            text.wrote("state", plan.saving().file());
        }
    }

    /** Asks the run to end after the step under way, also where it waits for data; for any thread. */
    void stop() {
        stopRequested = true;
        BatchSource source = data;
        if (source != null) {
            source.stop();
        }
        TrainingRun present = run;
        if (present != null) {
            present.stop();
        }
    }
}
