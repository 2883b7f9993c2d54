package dev.chagres.trainer.finetune;

import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.finetune.Predictions.Metrics;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Saves the state whenever an evaluation is better than all before, and ends the run after so many that are not.
 *
 * <p>Threading: confined to the thread that trains.
 */
final class BestModel implements Callback {
    /** By which evaluations are compared. */
    enum Metric {
        LOSS,
        ACCURACY,
        MACRO_F1,
        MATTHEWS;

        /** Returns a number that is larger where the evaluation is better. */
        double of(Evaluation.Result result, Metrics metrics) {
            return switch (this) {
                case LOSS -> -result.loss();
                case ACCURACY -> metrics.accuracy();
                case MACRO_F1 -> metrics.macroF1();
                case MATTHEWS -> metrics.matthews();
            };
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    private final Path file;
    private final Metric metric;
    private final int patience;
    private final Predictions predictions;
    private final PrintStream out;
    private double best = Double.NEGATIVE_INFINITY;
    private @Nullable String bestText;
    private int without;

    /**
     * Makes one.
     *
     * @param file for the best state
     * @param patience 0 for a run that is not ended early
     */
    BestModel(Path file, Metric metric, int patience, Predictions predictions, PrintStream out) {
        this.file = file;
        this.metric = metric;
        this.patience = patience;
        this.predictions = predictions;
        this.out = out;
    }

    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        Metrics metrics = predictions.take();
        double value = metric.of(result, metrics);
        String text = String.format(Locale.ROOT, "step %d: loss %.4f, %s", result.step(), result.loss(), metrics);
        boolean isBetter = value > best;
        out.println(text + (isBetter ? ", best so far" : ""));
        if (isBetter) {
            best = value;
            bestText = text;
            without = 0;
            run.save(file, Map.of());
        } else if (++without == patience) {
            out.println("ends: " + metric + " has not become better in " + patience + " evaluations");
            run.stop();
        }
    }

    /** Returns the best evaluation's text; null before the first that has a number. */
    @Nullable
    String best() {
        return bestText;
    }
}
