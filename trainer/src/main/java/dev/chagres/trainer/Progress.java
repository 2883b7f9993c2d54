package dev.chagres.trainer;

import dev.chagres.trainer.callback.Evaluation;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import me.tongfei.progressbar.ProgressBar;
import me.tongfei.progressbar.ProgressBarBuilder;

/**
 * Shows how far a run is: a bar on a terminal, plain lines elsewhere.
 *
 * <p>Each time it tells mean loss, unpadded tokens a second, padding share and MFU since it told last, so that making the
 * text, which makes garbage, stays rare.
 *
 * <p>Threading: one thread at a time.
 */
abstract class Progress implements AutoCloseable {
    private final long everyNanos;
    private final double peakFlops;
    private final Totals since = new Totals();
    private long toldNanos;
    private boolean told;

    private Progress(double everySeconds, double peakFlops) {
        this.everyNanos = (long) (everySeconds * 1e9);
        this.peakFlops = peakFlops;
    }

    /** Shows a bar that is drawn again in place, of a run that goes on after {@code begun} steps. */
    static Progress bar(int begun, int steps, double peakFlops) {
        return new Bar(begun, steps, peakFlops);
    }

    /** Prints the first step, the last one, and in between a line every few seconds. */
    static Progress lines(PrintStream out, int steps, double peakFlops, double everySeconds) {
        return new Lines(out, steps, peakFlops, everySeconds);
    }

    /** Takes a finished step. */
    final void add(StepMetrics step) {
        since.add(step);
        long now = System.nanoTime();
        if (!told || now - toldNanos >= everyNanos || isLast(step)) {
            told = true;
            toldNanos = now;
            tell(step, since, facts());
            since.clear();
        } else {
            count(step);
        }
    }

    /** Takes an evaluation. */
    abstract void add(Evaluation.Result result);

    @Override
    public abstract void close();

    abstract boolean isLast(StepMetrics step);

    abstract void tell(StepMetrics step, Totals since, List<String> facts);

    abstract void count(StepMetrics step);

    /** The most telling first. */
    private List<String> facts() {
        var facts = new ArrayList<String>();
        facts.add(String.format(Locale.ROOT, "loss %.3f", since.meanLoss()));
        if (since.skipped() > 0) {
            facts.add(since.skipped() + " skipped");
        }
        facts.add(String.format(Locale.ROOT, "%,.0f tokens/s", since.tokensPerSecond()));
        double mfu = since.mfu(peakFlops);
        if (!Double.isNaN(mfu)) {
            facts.add(String.format(Locale.ROOT, "MFU %.1f %%", 100 * mfu));
        }
        facts.add(String.format(Locale.ROOT, "padding %.1f %%", 100 * since.paddingShare()));
        return facts;
    }

    private static final class Bar extends Progress {
        private static final double SECONDS = 0.5;
        private final ProgressBar bar;
        private volatile List<String> facts = List.of();
        private String evaluated = "";

        Bar(int begun, int steps, double peakFlops) {
            super(SECONDS, peakFlops);
            bar = new ProgressBarBuilder()
                    .setTaskName("train")
                    .setInitialMax(steps)
                    .startsFrom(begun, Duration.ZERO)
                    .setRenderer((state, width) -> new ProgressBarText(
                                    begun, state.getCurrent(), state.getMax(), state.getTotalElapsed(), facts)
                            .fit(width))
                    .setConsumer(new TerminalLine(
                            new PrintStream(new FileOutputStream(FileDescriptor.err)), System.getenv()))
                    .setUpdateIntervalMillis((int) (1_000 * SECONDS))
                    .build();
        }

        @Override
        boolean isLast(StepMetrics step) {
            return step.step() == bar.getMax();
        }

        @Override
        void tell(StepMetrics step, Totals since, List<String> facts) {
            if (!evaluated.isEmpty()) {
                facts.add(1, evaluated);
            }
            this.facts = facts;
            bar.stepTo(step.step());
        }

        @Override
        void count(StepMetrics step) {
            bar.stepTo(step.step());
        }

        @Override
        void add(Evaluation.Result result) {
            evaluated = String.format(Locale.ROOT, "held-out %.3f", result.loss());
        }

        @Override
        public void close() {
            bar.close();
        }
    }

    private static final class Lines extends Progress {
        private final PrintStream out;
        private final int steps;

        Lines(PrintStream out, int steps, double peakFlops, double everySeconds) {
            super(everySeconds, peakFlops);
            this.out = out;
            this.steps = steps;
        }

        @Override
        boolean isLast(StepMetrics step) {
            return step.step() == steps;
        }

        @Override
        void tell(StepMetrics step, Totals since, List<String> facts) {
            double secondsPerStep = since.millis() / since.steps() / 1e3;
            out.printf(
                    Locale.ROOT,
                    "step %d/%d  %s  %s%n",
                    step.step(),
                    steps,
                    String.join("  ", facts),
                    ProgressBarText.left(secondsPerStep * (steps - step.step())));
        }

        @Override
        void add(Evaluation.Result result) {
            out.printf(Locale.ROOT, "step %d/%d  held-out data: %s%n", result.step(), steps, result);
        }

        @Override
        void count(StepMetrics step) {}

        @Override
        public void close() {}
    }

    /**
     * The line of a progress bar, fitted to a width. Where that is short the last facts go first; then the bar goes, and the most
     * telling fact, the loss, stays; then the time that is left.
     *
     * <p>Threading: immutable.
     *
     * @param begun steps done before this run
     * @param step steps done
     * @param steps steps in all
     * @param elapsed time that the steps of this run took
     * @param facts what is known of the last steps, the most telling first
     */
    record ProgressBarText(long begun, long step, long steps, Duration elapsed, List<String> facts) {
        private static final int LEAST_CELLS = 10;
        private static final int MOST_CELLS = 40;
        private static final String NAME = "train ";
        private static final String GAP = "  ";

        /** Copies the facts. */
        ProgressBarText {
            facts = List.copyOf(facts);
        }

        /** Returns the line, of at most {@code width} characters unless the count of steps alone takes more. */
        String fit(int width) {
            String count = step + "/" + steps;
            var words = new ArrayList<String>();
            words.add(count);
            if (step > begun) {
                words.add(left(elapsed.toMillis() / 1e3 / (step - begun) * (steps - step)));
            }
            int least = words.size() + Math.min(1, facts.size());
            words.addAll(facts);
            for (; words.size() >= least; words.removeLast()) {
                int cells = width - NAME.length() - 3 - String.join(GAP, words).length();
                if (cells >= LEAST_CELLS) {
                    return NAME + "[" + bar(Math.min(cells, MOST_CELLS)) + "] " + String.join(GAP, words);
                }
            }
            return withoutBar(width, count, words);
        }

        private String withoutBar(int width, String count, List<String> countAndLeft) {
            String loss = facts.isEmpty() ? "" : GAP + facts.getFirst();
            String left = countAndLeft.size() > 1 ? GAP + countAndLeft.get(1) : "";
            for (String line : List.of(NAME + count + loss + left, NAME + count + loss, count + loss, loss.strip())) {
                if (!line.isEmpty() && line.length() <= width) {
                    return line;
                }
            }
            return count;
        }

        private String bar(int cells) {
            int full = (int) (cells * step / Math.max(1, steps));
            return "=".repeat(full) + (full < cells ? ">" + " ".repeat(cells - full - 1) : "");
        }

        /** How long the remaining steps will take. */
        static String left(double seconds) {
            long whole = Math.round(seconds);
            return String.format(Locale.ROOT, "left %d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
        }
    }
}
