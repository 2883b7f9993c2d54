package dev.chagres.samples.train;

import dev.chagres.bindings.NativeException;
import dev.chagres.samples.data.BatchSource;
import dev.chagres.samples.data.FastaException;
import dev.chagres.samples.data.SequencePacker;
import dev.chagres.samples.data.ShuffledSequences;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;
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
    private static final int FIRST_STEPS = 1 << 16;

    private final TrainingPlan plan;
    private final Platform platform;
    private final PrintStream out;
    private final PrintStream progressOut;
    private final double peakFlops;
    private final Totals totals = new Totals();
    /** By step; grows as they are made, for a run may be asked for more steps than memory has room for. */
    private double[] losses;

    private volatile boolean stopRequested;
    private volatile @Nullable TrainingRun run;

    /**
     * Prepares a run.
     *
     * @param out gets the first lines and the summary
     * @param progressOut gets the progress
     */
    TrainingSession(TrainingPlan plan, Platform platform, PrintStream out, PrintStream progressOut) {
        this.plan = plan;
        this.platform = platform;
        this.out = out;
        this.progressOut = progressOut;
        this.peakFlops = platform.isGpu() ? PeakRate.flopsPerSecond(platform.device(), plan.recipe()) : Double.NaN;
        this.losses = new double[Math.min(plan.steps(), FIRST_STEPS)];
    }

    /**
     * Trains and writes what was asked for.
     *
     * @throws TrainingException when an output cannot be written or the numbers run away
     * @throws dev.chagres.samples.data.FastaException when the data cannot be used
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     */
    void train() throws InterruptedException {
        if (plan.plot() != null && !probePlot(plan.plot())) {
            summarize();
            return;
        }
        try (ReportWriter report = plan.report() == null ? null : new ReportWriter(plan.report())) {
            try {
                train(report);
            } catch (FastaException | TrainingException | NativeException e) {
                throw report == null ? e : named(e, report);
            }
            if (report != null) {
                report.finish();
            }
        }
        summarize();
        if (plan.plot() != null && totals.steps() > 0) {
            LossPlot.write(plan.plot(), title(), losses, totals.steps());
            out.println("plot: " + plan.plot());
        }
    }

    /** False when the run is to stop: while the JVM ends, Java's graphics cannot begin, which says nothing of its fonts. */
    private boolean probePlot(Path plot) {
        try {
            LossPlot.probe(plot);
            return true;
        } catch (TrainingException e) {
            if (stopRequested) {
                return false;
            }
            throw e;
        }
    }

    private void keepLoss(StepMetrics step) {
        int index = step.step() - 1;
        if (index == losses.length) {
            losses = Arrays.copyOf(losses, (int) Math.min(plan.steps(), 2L * losses.length));
        }
        losses[index] = step.loss();
    }

    /** Says where the steps before a failure are. */
    private RuntimeException named(RuntimeException e, ReportWriter report) {
        if (totals.steps() == 0) {
            report.discard();
            return e;
        }
        return new TrainingException(
                e.getMessage() + " (the " + totals.steps() + " steps before are in " + report.written() + ")", e);
    }

    private void train(@Nullable ReportWriter report) throws InterruptedException {
        var sequences = new ShuffledSequences(plan.source(), plan.seed(), ShuffledSequences.WINDOW_RESIDUES);
        try (var batches = new BatchSource(new SequencePacker(plan.shape(), sequences), BATCHES)) {
            // Bad data is told before the model, which may take long to make.
            batches.awaitFirst();
            try (TrainingModel model = platform.open(plan)) {
                RunDescription description = describe(model);
                if (report != null) {
                    report.begin(description);
                }
                announce(description);
                try (Progress progress = progress()) {
                    loop(model, batches, report, progress);
                }
            }
        }
    }

    private void loop(TrainingModel model, BatchSource batches, @Nullable ReportWriter report, Progress progress)
            throws InterruptedException {
        var loop = new TrainingRun(model, batches, step -> plan.schedule().at(step + 1), peakFlops, step -> {
            if (report != null) {
                report.step(step);
            }
            keepLoss(step);
            totals.add(step);
            progress.add(step);
        });
        run = loop;
        if (stopRequested) {
            loop.stop();
        }
        loop.run(plan.steps());
    }

    private RunDescription describe(TrainingModel model) {
        return new RunDescription(
                platform.provider(), platform.device(), platform.libraries(), model.parameterCount(), plan);
    }

    private Progress progress() {
        boolean terminal = System.console() != null && System.console().isTerminal();
        return terminal
                ? Progress.bar(plan.steps(), peakFlops)
                : Progress.lines(progressOut, plan.steps(), peakFlops, SECONDS_PER_LINE);
    }

    private String title() {
        return "ESM-2 " + plan.size().label() + ", " + plan.recipe() + ", " + platform.provider() + ", seed "
                + plan.seed();
    }

    private void announce(RunDescription description) {
        out.printf(
                Locale.ROOT,
                "ESM-2 %s: %,d parameters, %s on %s (%s)%n",
                plan.size().label(),
                description.parameters(),
                plan.recipe(),
                description.device(),
                description.provider());
        out.printf(
                Locale.ROOT,
                "%s, %d steps of up to %,d tokens, context %,d, packing %s, seed %d%n",
                plan.source().name(),
                plan.steps(),
                plan.shape().tokensPerStep(),
                plan.shape().context(),
                plan.packing(),
                plan.seed());
    }

    private void summarize() {
        int steps = totals.steps();
        if (stopRequested) {
            out.printf(Locale.ROOT, "stopped after %d of %d steps%n", steps, plan.steps());
        }
        if (steps == 0) {
            return;
        }
        int last = Math.min(LossPlot.SMOOTHED_STEPS, steps);
        out.printf(
                Locale.ROOT,
                "loss %.4f at first, %.4f over the last %d steps%n",
                losses[0],
                LossPlot.mean(losses, steps - last, steps),
                last);
        double mfu = totals.mfu(peakFlops);
        out.printf(
                Locale.ROOT,
                "%,d tokens in %.1f s: %,.0f tokens/s, padding %.1f %%%s, peak memory %,.1f MiB%n",
                totals.tokens(),
                totals.millis() / 1e3,
                totals.tokensPerSecond(),
                100 * totals.paddingShare(),
                Double.isNaN(mfu) ? "" : String.format(Locale.ROOT, ", MFU %.1f %%", 100 * mfu),
                totals.memoryBytes() / 1048576.0);
        if (plan.report() != null) {
            out.println("report: " + plan.report());
        }
    }

    /** Asks the run to end after the step under way; for any thread. */
    void stop() {
        stopRequested = true;
        TrainingRun present = run;
        if (present != null) {
            present.stop();
        }
    }
}
