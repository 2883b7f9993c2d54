package dev.chagres.trainer.callback;

import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Ends a run when the loss of held-out data no longer falls, or is no finite number. A run that
 * is resumed goes on counting, by what the saved state tells.
 *
 * <p>Threading: confined to the thread that trains, one run at a time.
 *
 * <p>Source: PyTorch Lightning's {@code EarlyStopping}.
 */
public final class EarlyStopping implements Callback {
    private static final String BEST = "early-stopping.best";
    private static final String BEST_STEP = "early-stopping.best_step";
    private static final String WITHOUT = "early-stopping.without";

    private final int patience;
    private final double minDelta;
    private double best = Double.POSITIVE_INFINITY;
    private int bestStep;
    private int without;
    private @Nullable String reason;

    /**
     * Makes one.
     *
     * @param patience the run ends after so many evaluations in a row without a smaller loss
     * @param minDelta a loss is smaller when it is below the smallest one so far by more than this
     * @throws IllegalArgumentException when the patience is below 1, or the change is negative or not finite
     */
    public EarlyStopping(int patience, double minDelta) {
        if (patience < 1) {
            throw new IllegalArgumentException("patience: expected at least 1, got " + patience);
        }
        if (!(minDelta >= 0 && minDelta < Double.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("minDelta: expected a finite number from 0 on, got " + minDelta);
        }
        this.patience = patience;
        this.minDelta = minDelta;
    }

    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        if (!Double.isFinite(result.loss())) {
            end(run, "the loss of held-out data is " + result.loss());
        } else if (result.loss() < best - minDelta) {
            best = result.loss();
            bestStep = result.step();
            without = 0;
        } else if (++without >= patience) {
            end(
                    run,
                    String.format(
                            Locale.ROOT,
                            "the loss of held-out data was lowest after step %,d, %.4f, and has not fallen in the last %,d"
                                    + " evaluations",
                            bestStep,
                            best,
                            without));
        }
    }

    @Override
    public Map<String, String> texts() {
        return bestStep == 0
                ? Map.of()
                : Map.of(
                        BEST,
                        Double.toString(best),
                        BEST_STEP,
                        Integer.toString(bestStep),
                        WITHOUT,
                        Integer.toString(without));
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException when they are no numbers
     */
    @Override
    public void onResume(Map<String, String> texts) {
        String saved = texts.get(BEST);
        String step = texts.get(BEST_STEP);
        String evaluations = texts.get(WITHOUT);
        if (saved != null && step != null && evaluations != null) {
            best = Double.parseDouble(saved);
            bestStep = Integer.parseInt(step);
            without = Integer.parseInt(evaluations);
        }
    }

    private void end(TrainingRun run, String why) {
        if (reason == null) {
            reason = why;
        }
        run.stop();
    }

    /** Returns why it has ended the run; empty where it has not. */
    public Optional<String> reason() {
        return Optional.ofNullable(reason);
    }

    /** Returns the smallest loss so far that was smaller than earlier ones; infinite before the first. */
    public double best() {
        return best;
    }

    /** Returns after which step that was; 0 before the first. */
    public int bestStep() {
        return bestStep;
    }
}
