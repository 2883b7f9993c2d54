package dev.chagres.trainer.finetune;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

/**
 * Counts of which class was predicted for which.
 *
 * <ul>
 *   <li>accuracy: part of the labels that are predicted
 *   <li>macro F1: mean over the classes that occur of {@code 2 tp / (2 tp + fp + fn)}
 *   <li>Matthews: correlation of labels and predictions, from -1 to 1; 0 where either has one class alone
 * </ul>
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code accuracy_score}, {@code f1_score} with macro averages and {@code matthews_corrcoef} of scikit-learn.
 */
final class ClassPredictions extends Predictions {
    private final int classes;
    /** By label, then by prediction. */
    private long[] counts;

    ClassPredictions(int classes) {
        this.classes = classes;
        counts = new long[classes * classes];
    }

    @Override
    synchronized void add(float[] scores, int start, int label) {
        int best = 0;
        for (int j = 1; j < classes; j++) {
            best = scores[start + j] > scores[start + best] ? j : best;
        }
        counts[label * classes + best]++;
    }

    @Override
    Set<Metric> metrics() {
        return EnumSet.of(Metric.ACCURACY, Metric.MACRO_F1, Metric.MATTHEWS);
    }

    @Override
    synchronized Metrics take() {
        Metrics metrics = of(counts, classes);
        counts = new long[classes * classes];
        return metrics;
    }

    /** Computes them of counts by label, then by prediction. */
    static Metrics of(long[] counts, int classes) {
        double[] labels = new double[classes];
        double[] predicted = new double[classes];
        double right = 0;
        double all = 0;
        for (int i = 0; i < classes; i++) {
            for (int j = 0; j < classes; j++) {
                double count = counts[i * classes + j];
                labels[i] += count;
                predicted[j] += count;
                all += count;
                right += i == j ? count : 0;
            }
        }
        double f1 = 0;
        int occurring = 0;
        double both = 0;
        double labelSquares = 0;
        double predictedSquares = 0;
        for (int i = 0; i < classes; i++) {
            if (labels[i] + predicted[i] > 0) {
                f1 += 2 * counts[i * classes + i] / (labels[i] + predicted[i]);
                occurring++;
            }
            both += labels[i] * predicted[i];
            labelSquares += labels[i] * labels[i];
            predictedSquares += predicted[i] * predicted[i];
        }
        double spread = Math.sqrt((all * all - predictedSquares) * (all * all - labelSquares));
        return new Metrics(Map.of(
                Metric.ACCURACY,
                right / all,
                Metric.MACRO_F1,
                f1 / occurring,
                Metric.MATTHEWS,
                spread == 0 ? 0 : (right * all - both) / spread));
    }
}
