package dev.chagres.trainer;

import dev.chagres.trainer.callback.Evaluation;
import java.io.PrintStream;
import java.util.Locale;
import java.util.Map;

/**
 * What a run says on standard output: what it is going to do, how long the warm-up took, and what came out.
 *
 * <p>Threading: one thread at a time.
 */
final class RunText {
    private final PrintStream out;
    private final TrainingPlan plan;

    RunText(PrintStream out, TrainingPlan plan) {
        this.out = out;
        this.plan = plan;
    }

    /** Says what is trained, and where. */
    void announce(RunDescription description) {
        int microBatches = plan.shape().microBatches();
        out.printf(
                Locale.ROOT,
                "%s %s: %,d parameters, %s on %s (%s)%n",
                plan.start().model().kind(),
                plan.start().name(),
                description.parameters(),
                plan.recipe(),
                description.device(),
                description.provider());
        out.printf(
                Locale.ROOT,
                "%s, %s of up to %,d tokens%s%s, context %,d, packing %s, seed %d%n",
                plan.data().name(),
                steps(plan.steps()),
                plan.shape().tokensPerStep(),
                microBatches == 1 ? "" : " in " + microBatches + " micro-batches",
                plan.ranks() == 1 ? "" : ranks(plan.ranks(), plan.layout()),
                plan.shape().context(),
                plan.packing(),
                plan.seed());
    }

    /** Says where the run begins, if not with first weights. */
    void resumes(SavedRun saved) {
        if (plan.saving().resumed() != null) {
            out.printf(
                    Locale.ROOT,
                    "resuming %s after %s and %,d sequences%n",
                    plan.saving().resumed(),
                    steps(saved.steps()),
                    saved.data().next() + Long.bitCount(saved.data().takenAhead()));
        }
    }

    /** Says that the run was completed before. */
    void nothingLeft() {
        out.printf(
                Locale.ROOT,
                "nothing left to do: %s has all %s%n",
                plan.saving().resumed(),
                steps(plan.steps()));
    }

    /** Says how many sequences are evaluated, if some are. */
    void evaluates(long sequences) {
        TrainingData source = plan.evaluation().data();
        if (source != null) {
            int every = plan.evaluation().every();
            out.printf(
                    Locale.ROOT,
                    "evaluating %,d held-out sequences of %s %sat the end%n",
                    sequences,
                    source.name(),
                    every == 0 ? "" : "every " + steps(every) + " and ");
        }
    }

    /** Says what the last evaluation has found. */
    void evaluated(Evaluation.Result result) {
        out.printf(
                Locale.ROOT,
                "held-out data after %s: %s (%,d %s of %,d sequences)%n",
                steps(result.step()),
                result,
                result.labelled(),
                plan.data().predicted(),
                result.sequences());
    }

    /** Says why a run ended before its last step. */
    void stoppedEarly(int steps, String why) {
        out.printf(Locale.ROOT, "stopped early, after %s: %s%n", steps(steps), why);
    }

    /** Begins the line of the warm-up: it may take long, and nothing else is seen of it. */
    void beginWarmUp(boolean gpu) {
        out.print(gpu ? "building kernels and attention plans: " : "getting ready: ");
        out.flush();
    }

    /** Ends that line. */
    void endWarmUp(double seconds) {
        out.printf(Locale.ROOT, "%.1f s%n", seconds);
    }

    /** Says how many steps a run made that was stopped. */
    void stopped(int steps) {
        out.printf(Locale.ROOT, "stopped after %,d of %s%n", steps, steps(plan.steps()));
    }

    /**
     * Says what came out of at least one step.
     *
     * @param all sums over all steps
     * @param steady sums over the last steps
     * @param peakFlops the device's rate, NaN when unknown
     */
    void summarize(Totals all, Totals steady, LossCurve losses, double peakFlops) {
        if (losses.steps() > 0) {
            int last = Math.min(LossPlot.SMOOTHED_STEPS, losses.steps());
            out.printf(
                    Locale.ROOT,
                    "loss %.4f at first, %.4f at the end%s%n",
                    losses.at(0),
                    losses.mean(losses.steps() - 1, last),
                    meanOf(last, losses.steps()));
        }
        if (all.skipped() > 0) {
            out.printf(
                    Locale.ROOT,
                    "%,d of %s skipped: their gradients were not finite at the loss scale of then%n",
                    all.skipped(),
                    steps(all.steps()));
        }
        double mfu = steady.mfu(peakFlops);
        out.printf(
                Locale.ROOT,
                "%,.0f tokens/s%s%s%n",
                steady.tokensPerSecond(),
                Double.isNaN(mfu)
                        ? ""
                        : String.format(Locale.ROOT, ", %,.1f TFLOP/s, MFU %.1f %%", steady.teraflops(), 100 * mfu),
                meanOf(steady.steps(), all.steps()));
        out.printf(
                Locale.ROOT,
                "%,d tokens in %.1f s, padding %.1f %%, peak memory %,.1f MiB%n",
                all.tokens(),
                all.millis() / 1e3,
                100 * all.paddingShare(),
                all.memoryBytes() / 1048576.0);
        all.ranks().forEach(out::println);
    }

    /** Says what was counted while the data were read, where there was something. */
    void counted(TrainingData data) {
        String told = data.countedText();
        if (!told.isEmpty()) {
            out.println(told);
        }
    }

    /** Returns a number of steps as one says it: {@code 1 step}, {@code 1,000 steps}. */
    static String steps(int count) {
        return String.format(Locale.ROOT, count == 1 ? "%,d step" : "%,d steps", count);
    }

    /** Returns several ranks as one says them: {@code " on 2 ranks (zero3)"}. */
    static String ranks(int count, Object strategy) {
        return " on " + count + " ranks (" + strategy + ")";
    }

    /** Says over how many steps at the end of a run a figure was taken; nothing where the run has one step. */
    private static String meanOf(int last, int steps) {
        return steps == 1 ? "" : String.format(Locale.ROOT, " (mean of the last %,d of %,d steps)", last, steps);
    }

    /** Says how many steps were replayed, and why others were not. */
    void explainSteps(String explained) {
        out.println(explained);
    }

    /** Names a file that was written. */
    void wrote(String what, Object file) {
        out.println(what + ": " + file);
    }

    /**
     * What a report begins with: where, what and how was trained.
     *
     * <p>Threading: immutable.
     *
     * @param provider {@code cuda} or {@code reference}
     * @param device the device's name
     * @param libraries each library's version by its name
     * @param parameters number of trained parameters
     * @param plan everything that the run follows from
     * @param windows how weights are gathered and gradients reduced
     */
    record RunDescription(
            String provider,
            String device,
            Map<String, String> libraries,
            long parameters,
            TrainingPlan plan,
            EffectiveWindows windows) {
        RunDescription {
            libraries = Map.copyOf(libraries);
        }
    }
}
