package dev.chagres.trainer.callback;

import dev.chagres.trainer.Callback;
import dev.chagres.trainer.TrainingRun;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.ToDoubleFunction;
import org.jspecify.annotations.Nullable;

/**
 * Ends a run when the loss of held-out data no longer falls, or is no finite number; {@link #ofLargest} watches another number of an
 * evaluation, that shall rise. A run that is resumed goes on counting, by what the saved state tells.
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
    private final String name;
    private final Aim aim;
    private final ToDoubleFunction<Evaluation.Result> watched;
    private double best;
    private int bestStep;
    private int without;
    private @Nullable String reason;

    /** Which numbers are better. */
    private enum Aim {
        SMALLEST,
        LARGEST;

        double worst() {
            return this == SMALLEST ? Double.POSITIVE_INFINITY : Double.NEGATIVE_INFINITY;
        }

        boolean isBetter(double value, double than, double minDelta) {
            return this == SMALLEST ? value < than - minDelta : value > than + minDelta;
        }
    }

    /**
     * Makes one that watches the loss.
     *
     * @param patience the run ends after so many evaluations in a row without a smaller loss
     * @param minDelta a loss is smaller when it is below the smallest one so far by more than this
     * @throws IllegalArgumentException when the patience is below 1, or the change is negative or not finite
     */
    public EarlyStopping(int patience, double minDelta) {
        this(patience, minDelta, "the loss of held-out data", Aim.SMALLEST, Evaluation.Result::loss);
    }

    private EarlyStopping(
            int patience, double minDelta, String name, Aim aim, ToDoubleFunction<Evaluation.Result> watched) {
        if (patience < 1) {
            throw new IllegalArgumentException("patience: expected at least 1, got " + patience);
        }
        if (!(minDelta >= 0 && minDelta < Double.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("minDelta: expected a finite number from 0 on, got " + minDelta);
        }
        this.patience = patience;
        this.minDelta = minDelta;
        this.name = Objects.requireNonNull(name, "name");
        this.aim = aim;
        this.watched = Objects.requireNonNull(watched, "watched");
        best = aim.worst();
    }

    /**
     * Returns one that ends a run when a number of its evaluations no longer rises, or the loss is no finite number. NaN is never larger.
     *
     * @param patience the run ends after so many evaluations in a row without a larger number; {@link Integer#MAX_VALUE} for never
     * @param name of the number, for {@link #reason}
     * @param watched returns it, asked once for each evaluation
     * @throws IllegalArgumentException when the patience is below 1
     */
    public static EarlyStopping ofLargest(int patience, String name, ToDoubleFunction<Evaluation.Result> watched) {
        return new EarlyStopping(patience, 0, name, Aim.LARGEST, watched);
    }

    /**
     * Returns one that ends a run when a number of its evaluations no longer falls, as {@link #ofLargest}.
     *
     * @param patience the run ends after so many evaluations in a row without a smaller number
     * @param name of the number, for {@link #reason}
     * @param watched returns it, asked once for each evaluation
     * @throws IllegalArgumentException when the patience is below 1
     */
    public static EarlyStopping ofSmallest(int patience, String name, ToDoubleFunction<Evaluation.Result> watched) {
        return new EarlyStopping(patience, 0, name, Aim.SMALLEST, watched);
    }

    @Override
    public void onEvaluation(TrainingRun run, Evaluation.Result result) {
        if (!Double.isFinite(result.loss())) {
            end(run, "the loss of held-out data is " + result.loss());
            return;
        }
        double value = watched.applyAsDouble(result);
        if (aim.isBetter(value, best, minDelta)) {
            best = value;
            bestStep = result.step();
            without = 0;
        } else if (++without >= patience) {
            end(
                    run,
                    String.format(
                            Locale.ROOT,
                            "%s was %s after step %,d, %.4f, and has not %s in the last %,d evaluations",
                            name,
                            aim == Aim.SMALLEST ? "lowest" : "highest",
                            bestStep,
                            best,
                            aim == Aim.SMALLEST ? "fallen" : "risen",
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

    /** Returns the best number so far, the smallest loss unless another one is watched; infinite before the first. */
    public double best() {
        return best;
    }

    /** Returns after which step that was; 0 before the first. */
    public int bestStep() {
        return bestStep;
    }
}
