package dev.chagres.trainer.callback;

import dev.chagres.trainer.Callback;
import dev.chagres.trainer.StepMetrics;
import dev.chagres.trainer.TrainingRun;
import java.util.ArrayList;
import java.util.List;

/**
 * Keeps the learning rates of a run, such as for a picture of a schedule.
 *
 * <p>Threading: confined to the thread that trains.
 */
public final class LearningRateMonitor implements Callback {
    private final int every;
    private final List<Rate> rates = new ArrayList<>();

    /**
     * The rate of a step.
     *
     * @param step counted from 1
     */
    public record Rate(int step, float rate) {}

    /**
     * Makes one.
     *
     * @param every the rate of each step whose number divides by this is kept
     * @throws IllegalArgumentException when it is below 1
     */
    public LearningRateMonitor(int every) {
        if (every < 1) {
            throw new IllegalArgumentException("every: expected at least 1, got " + every);
        }
        this.every = every;
    }

    @Override
    public void onStep(TrainingRun run, StepMetrics step) {
        if (step.step() % every == 0) {
            rates.add(new Rate(step.step(), step.learningRate()));
        }
    }

    /** Returns the rates so far, in the order of their steps. */
    public List<Rate> rates() {
        return List.copyOf(rates);
    }
}
