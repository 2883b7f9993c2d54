package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.QuantizerSite;
import dev.chagres.ops.QuantizationStatistics;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The statistics of casts, six numbers a place on the device.
 *
 * <p>Threading: the device's thread.
 */
final class CastMeasurements {
    private static final int COUNT = QuantizationStatistics.COUNT;
    private static final long NEVER = -1;

    private final Tensor all;
    private final Tensor[] ofPlace;
    /** By the number of the place: the step that was measured. */
    private final long[] steps;

    CastMeasurements(int places, Scope scope) {
        all = scope.tensor(DType.FLOAT32, places, COUNT);
        ofPlace = new Tensor[places];
        for (int i = 0; i < places; i++) {
            ofPlace[i] = scope.view(all, (long) i * COUNT, COUNT);
        }
        steps = new long[places];
        Arrays.fill(steps, NEVER);
    }

    void measure(QuantizerSite site, Tensor x, QuantizedTensor copies, long step, Stream stream) {
        QuantizationStatistics.quantizationStatistics(x, copies, ofPlace[site.index()], stream);
        steps[site.index()] = step;
    }

    List<CastStatistics> read(List<QuantizerSite> sites, Stream stream) {
        float[] numbers = all.toFloats(stream);
        List<CastStatistics> statistics = new ArrayList<>();
        for (int i = 0; i < steps.length; i++) {
            if (steps[i] != NEVER) {
                int at = i * COUNT;
                statistics.add(new CastStatistics(
                        sites.get(i),
                        steps[i],
                        numbers[at],
                        numbers[at + 1],
                        numbers[at + 2],
                        numbers[at + 3],
                        numbers[at + 4],
                        numbers[at + 5]));
            }
        }
        return List.copyOf(statistics);
    }
}
