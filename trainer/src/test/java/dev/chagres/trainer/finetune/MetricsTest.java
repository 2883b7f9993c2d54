package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.trainer.command.TargetScale;
import java.util.BitSet;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Metrics against numbers of scikit-learn 1.7 and SciPy 1.16. */
@Tag("L0")
class MetricsTest {
    /** Labels 0 0 0 1 1 2 2 2 2, predictions 0 0 1 1 2 2 2 0 2. */
    @Test
    void ofThreeClasses() {
        Metrics metrics = ClassPredictions.of(new long[] {2, 1, 0, 0, 1, 1, 1, 0, 3}, 3);
        assertEquals(6 / 9.0, metrics.of(Metric.ACCURACY), 1e-12);
        assertEquals((2 / 3.0 + 0.5 + 0.75) / 3, metrics.of(Metric.MACRO_F1), 1e-12);
        // (6 * 9 - (3 3 + 2 2 + 4 4)) / sqrt((81 - 29) (81 - 29))
        assertEquals(25 / 52.0, metrics.of(Metric.MATTHEWS), 1e-12);
        assertEquals("accuracy 0.6667, macro F1 0.6389, Matthews 0.4808", metrics.toString());
    }

    @Test
    void ofTwoClasses() {
        // tp 3, tn 4, fp 2, fn 1: (12 - 2) / sqrt(5 4 6 5)
        Metrics metrics = ClassPredictions.of(new long[] {4, 2, 1, 3}, 2);
        assertEquals(10 / Math.sqrt(600), metrics.of(Metric.MATTHEWS), 1e-12);
    }

    @Test
    void ofOneClassThatOccurs() {
        Metrics metrics = ClassPredictions.of(new long[] {5, 0, 0, 0, 0, 0, 0, 0, 0}, 3);
        assertEquals(1, metrics.of(Metric.ACCURACY));
        assertEquals(1, metrics.of(Metric.MACRO_F1), "classes that occur nowhere do not count");
        assertEquals(0, metrics.of(Metric.MATTHEWS));
    }

    /** Predictions tie once; ranks 1 2 3 4 5 and 2 1 3.5 3.5 5. */
    @Test
    void ofNumbers() {
        var predictions = new NumberPredictions(new TargetScale(10, 2), 0.25, 0.5, 0.75, 2, 3);
        float[] scores = {9, 0.5f, 0, 1, 1, 4}; // the first one is another token's
        for (int i = 0; i < 5; i++) {
            predictions.add(scores, i + 1, i);
        }
        Metrics metrics = predictions.take();
        // Differences of ranks -1 1 -0.5 0.5 0; the mean rank is 3: (9 - 0.5) / sqrt(10 9.5) as sums of products
        assertEquals(0.8720815992723809, metrics.of(Metric.SPEARMAN), 1e-12);
        assertEquals(0.8811710550677935, metrics.of(Metric.PEARSON), 1e-7);
        // 4 times the mean of the squares of 0.25 -0.5 0.25 -1 1
        assertEquals(1.9, metrics.of(Metric.MSE), 1e-6);
    }

    @Test
    void ofNumbersThatSayNothing() {
        Metrics one = NumberPredictions.of(new double[] {1}, new double[] {2});
        assertEquals(Double.NaN, one.of(Metric.SPEARMAN));
        assertEquals(1, one.of(Metric.MSE));
        Metrics same = NumberPredictions.of(new double[] {1, 2, 3}, new double[] {2, 2, 2});
        assertEquals(Double.NaN, same.of(Metric.SPEARMAN));
        assertEquals(Double.NaN, same.of(Metric.PEARSON));
        Metrics broken = NumberPredictions.of(new double[] {1, 2, 3}, new double[] {2, Double.NaN, 2});
        assertEquals(Double.NaN, broken.of(Metric.SPEARMAN));
    }

    /** Labels {0} {0 2} {} {1}, predictions {0} {0} {2} {1}, and a class that is nowhere. */
    @Test
    void ofSets() {
        List<BitSet> sets = List.of(
                BitSet.valueOf(new long[] {1}),
                BitSet.valueOf(new long[] {5}),
                new BitSet(),
                BitSet.valueOf(new long[] {2}));
        var predictions = new SetPredictions(4, sets);
        predictions.add(new float[] {1, -1, -1, 0}, 0, 0);
        predictions.add(new float[] {1, -1, -1, -1}, 0, 1);
        predictions.add(new float[] {-1, -1, 2, -1}, 0, 2);
        predictions.add(new float[] {-1, 3, -1, -1}, 0, 3);
        Metrics metrics = predictions.take();
        assertEquals(0.5, metrics.of(Metric.ACCURACY));
        assertEquals(6 / 8.0, metrics.of(Metric.MICRO_F1), 1e-12);
        assertEquals((1 + 1 + 0 + 0) / 4.0, metrics.of(Metric.MACRO_F1), 1e-12);
        assertEquals("accuracy 0.5000, micro F1 0.7500, macro F1 0.5000", metrics.toString());
    }
}
