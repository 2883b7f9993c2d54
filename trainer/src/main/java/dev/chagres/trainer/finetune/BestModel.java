package dev.chagres.trainer.finetune;

import dev.chagres.trainer.TrainingRun;
import dev.chagres.trainer.callback.EarlyStopping;
import dev.chagres.trainer.callback.Evaluation;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.function.ToDoubleFunction;
import org.jspecify.annotations.Nullable;

/**
 * Saves the state whenever an evaluation is better than all before, and ends the run after so many that are not.
 *
 * <p>Threading: confined to the thread that trains.
 */
final class BestModel implements TuningRun.Keeper {
    private static final String BEST = "finetune.best";

    private final Path file;
    private final EarlyStopping stopping;
    private final @Nullable Predictions predictions;
    private final PrintStream out;
    private Metrics latest = new Metrics(Map.of());
    private @Nullable String bestText;

    /**
     * Makes one.
     *
     * @param file for the best state
     * @param predictions of metrics beside the loss; null for none
     * @param patience 0 for a run that is not ended early
     */
    BestModel(Path file, Metric metric, int patience, @Nullable Predictions predictions, PrintStream out) {
        this.file = file;
        this.predictions = predictions;
        this.out = out;
        int evaluations = patience == 0 ? Integer.MAX_VALUE : patience;
        ToDoubleFunction<Evaluation.Result> watched =
                result -> metric == Metric.LOSS ? result.loss() : latest.of(metric);
        stopping = metric.isError()
                ? EarlyStopping.ofSmallest(evaluations, metric.text(), watched)
                : EarlyStopping.ofLargest(evaluations, metric.text(), watched);
    }

    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        Predictions counted = predictions;
        latest = counted == null ? latest : counted.take();
        stopping.onEvaluation(run, result);
        String text = "step " + result.step() + ": "
                + (counted == null
                        ? result.toString()
                        : String.format(Locale.ROOT, "loss %.4f, %s", result.loss(), latest));
        boolean isBest = stopping.bestStep() == result.step();
        out.println(text + (isBest ? ", best so far" : ""));
        if (isBest) {
            bestText = text;
            run.save(file, Map.of());
        }
        stopping.reason().ifPresent(reason -> out.println("ends: " + reason));
    }

    @Override
    public Map<String, String> texts() {
        Map<String, String> all = new HashMap<>(stopping.texts());
        if (bestText != null) {
            all.put(BEST, bestText);
        }
        return all;
    }

    @Override
    public void onResume(Map<String, String> texts) {
        stopping.onResume(texts);
        bestText = texts.get(BEST);
    }

    @Override
    public @Nullable String told() {
        return bestText;
    }
}
