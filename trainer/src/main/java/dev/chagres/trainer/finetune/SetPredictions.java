package dev.chagres.trainer.finetune;

import java.util.BitSet;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Counts of which classes were predicted, those whose score is above 0: whose probability is above a half.
 *
 * <ul>
 *   <li>accuracy: part of the sequences of which all classes are predicted and no other
 *   <li>micro F1: {@code 2 tp / (2 tp + fp + fn)} of all classes together
 *   <li>macro F1: the mean of that over the classes, 0 for one that occurs nowhere
 * </ul>
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code accuracy_score} and {@code f1_score} of scikit-learn.
 */
final class SetPredictions extends Predictions {
    private final int classes;
    /** By label. */
    private final List<BitSet> sets;

    private long[] hits;
    /** Of each class, how often it was predicted and how often it was there, added. */
    private long[] named;

    private long right;
    private long all;

    SetPredictions(int classes, List<BitSet> sets) {
        this.classes = classes;
        this.sets = sets;
        hits = new long[classes];
        named = new long[classes];
    }

    @Override
    synchronized void add(float[] scores, int start, int label) {
        BitSet set = sets.get(label);
        boolean same = true;
        for (int i = 0; i < classes; i++) {
            boolean isThere = set.get(i);
            boolean isPredicted = scores[start + i] > 0;
            hits[i] += isThere && isPredicted ? 1 : 0;
            named[i] += (isThere ? 1 : 0) + (isPredicted ? 1 : 0);
            same &= isThere == isPredicted;
        }
        right += same ? 1 : 0;
        all++;
    }

    @Override
    Set<Metric> metrics() {
        return EnumSet.of(Metric.ACCURACY, Metric.MICRO_F1, Metric.MACRO_F1);
    }

    @Override
    synchronized Metrics take() {
        long hit = 0;
        long either = 0;
        double macro = 0;
        for (int i = 0; i < classes; i++) {
            hit += hits[i];
            either += named[i];
            macro += named[i] == 0 ? 0 : 2.0 * hits[i] / named[i] / classes;
        }
        var metrics = new Metrics(Map.of(
                Metric.ACCURACY,
                (double) right / all,
                Metric.MICRO_F1,
                either == 0 ? 0 : 2.0 * hit / either,
                Metric.MACRO_F1,
                macro));
        hits = new long[classes];
        named = new long[classes];
        right = 0;
        all = 0;
        return metrics;
    }
}
