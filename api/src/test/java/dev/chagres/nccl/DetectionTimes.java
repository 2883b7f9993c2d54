package dev.chagres.nccl;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;

/** How long ranks took to be told of faults. */
final class DetectionTimes {
    private final String fault;
    private final List<Double> seconds = new ArrayList<>();

    DetectionTimes(String fault) {
        this.fault = fault;
    }

    void add(double more) {
        seconds.add(more);
    }

    /** Returns the median and the maximum, as the tests print them. */
    @Override
    public String toString() {
        if (seconds.isEmpty()) {
            return fault + ": no rank was told";
        }
        List<Double> sorted = new ArrayList<>(seconds);
        Collections.sort(sorted);
        int middle = sorted.size() / 2;
        double median = sorted.size() % 2 == 1 ? sorted.get(middle) : (sorted.get(middle - 1) + sorted.get(middle)) / 2;
        return String.format(
                Locale.ROOT,
                "%s: %d ranks were told after a median of %.3f s, at most %.3f s",
                fault,
                sorted.size(),
                median,
                sorted.getLast());
    }
}
