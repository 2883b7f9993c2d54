package dev.chagres.trainer.finetune;

import dev.chagres.trainer.command.TargetScale;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.commons.math3.stat.correlation.PearsonsCorrelation;
import org.apache.commons.math3.stat.correlation.SpearmansCorrelation;
import org.apache.commons.math3.util.ResizableDoubleArray;

/**
 * Numbers that were predicted, and those of the labels, in the units of the data.
 *
 * <ul>
 *   <li>Spearman: correlation of the ranks, of equal numbers their mean; Pearson: that of the numbers. NaN where there are fewer than two, or
 *       all are the same
 *   <li>MSE: the mean of {@code (predicted - label)^2}
 * </ul>
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code spearmanr} and {@code pearsonr} of SciPy, {@code mean_squared_error} of scikit-learn; computed by Commons Math.
 */
final class NumberPredictions extends Predictions {
    private final TargetScale scale;
    private final double[] numbers;
    private ResizableDoubleArray labels = new ResizableDoubleArray();
    private ResizableDoubleArray predicted = new ResizableDoubleArray();

    /**
     * Makes new ones.
     *
     * @param numbers what labels stand for, by their place, as the model has learned it
     */
    NumberPredictions(TargetScale scale, double... numbers) {
        this.scale = scale;
        this.numbers = numbers;
    }

    @Override
    synchronized void add(float[] scores, int start, int label) {
        predicted.addElement(scale.plain(scores[start]));
        labels.addElement(scale.plain(numbers[label]));
    }

    @Override
    Set<Metric> metrics() {
        return EnumSet.of(Metric.SPEARMAN, Metric.PEARSON, Metric.MSE);
    }

    @Override
    synchronized Metrics take() {
        Metrics metrics = of(labels.getElements(), predicted.getElements());
        labels = new ResizableDoubleArray();
        predicted = new ResizableDoubleArray();
        return metrics;
    }

    static Metrics of(double[] labels, double[] predicted) {
        double squares = 0;
        boolean finite = true;
        for (int i = 0; i < labels.length; i++) {
            squares += (predicted[i] - labels[i]) * (predicted[i] - labels[i]);
            finite &= Double.isFinite(predicted[i]);
        }
        boolean correlated = labels.length > 1 && finite;
        return new Metrics(Map.of(
                Metric.SPEARMAN,
                correlated ? new SpearmansCorrelation().correlation(labels, predicted) : Double.NaN,
                Metric.PEARSON,
                correlated ? new PearsonsCorrelation().correlation(labels, predicted) : Double.NaN,
                Metric.MSE,
                squares / labels.length));
    }
}
