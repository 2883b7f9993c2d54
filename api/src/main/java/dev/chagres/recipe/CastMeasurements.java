package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.ops.QuantizationStatistics;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The statistics of casts, six numbers per site on the device, allocated when they are first asked for.
 *
 * <p>Threading: the device's thread.
 */
final class CastMeasurements {
    private static final int COUNT = QuantizationStatistics.COUNT;
    private static final long NEVER = -1;

    private final Parameters parameters;
    private final Scope scope;
    /** By index of the site: the step that was measured. */
    private final long[] steps;

    private final Tensor[] ofPlace;
    /** The sites that were measured in this step. */
    private final BitSet measured = new BitSet();

    private @Nullable Tensor all;
    private int every;

    /** {@code scope}: holds the numbers, once they are asked for. */
    CastMeasurements(Parameters parameters, Scope scope) {
        this.parameters = parameters;
        this.scope = scope;
        int places = parameters.quantizers().size();
        ofPlace = new Tensor[places];
        steps = new long[places];
        Arrays.fill(steps, NEVER);
    }

    /** Measures each step whose number is a multiple of {@code count}; 0: none. */
    void every(int count) {
        if (count < 0) {
            throw new IllegalArgumentException("steps: expected 0 or more, got " + count);
        }
        if (count > 0 && all == null) {
            Tensor taken = scope.tensor(DType.FLOAT32, ofPlace.length, COUNT);
            for (int i = 0; i < ofPlace.length; i++) {
                ofPlace[i] = scope.view(taken, (long) i * COUNT, COUNT);
            }
            all = taken;
        }
        every = count;
    }

    /** Returns whether casts of this step are measured. What a graph replays is not. */
    boolean measures(AmaxRecording recording) {
        return every != 0
                && recording == AmaxRecording.ON
                && parameters.step() % every == 0
                && Inside.capture(scope.stream()) == null;
    }

    /** Returns whether the next cast at {@code site} is measured: where casts of this step are, the first. */
    boolean measures(QuantizerSite site, AmaxRecording recording) {
        return measures(recording) && !measured.get(site.index());
    }

    /** Measures the first casts again: another step begins, or this one begins anew. */
    void restart() {
        measured.clear();
    }

    void measure(QuantizerSite site, Tensor x, QuantizedTensor copies, Stream stream) {
        if (all == null) {
            throw new IllegalStateException("measure: expected measureEvery before, which takes the memory");
        }
        QuantizationStatistics.quantizationStatistics(x, copies, ofPlace[site.index()], stream);
        steps[site.index()] = parameters.step();
        measured.set(site.index());
    }

    List<CastStatistics> read() {
        if (all == null) {
            return List.of();
        }
        float[] numbers = all.toFloats(scope.stream());
        List<CastStatistics> statistics = new ArrayList<>();
        for (int i = 0; i < steps.length; i++) {
            if (steps[i] != NEVER) {
                int at = i * COUNT;
                statistics.add(new CastStatistics(
                        parameters.quantizers().get(i),
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
