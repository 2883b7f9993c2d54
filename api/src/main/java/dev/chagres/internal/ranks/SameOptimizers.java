package dev.chagres.internal.ranks;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.Parameters;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.function.Supplier;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * Checks that ranks which update the same weights, or parts of one model, have the same optimizer settings. Settings are
 * compared before the first step and, if a rank had no optimizer then, before the second one. Each rank receives all settings, so all reach
 * the same result and none hangs. Ranks without an optimizer are ignored. A captured step compares nothing: settings that are not compared
 * yet are compared by the next enqueued step, if there is one.
 *
 * <p>Threading: the device's thread.
 */
public final class SameOptimizers {
    /** The numbers of each rank: bytes of its settings, 0 without an optimizer, and their checksum. */
    private static final int NUMBERS = 2;

    private static final int MOST_COMPARISONS = 2;

    private final Supplier<String> settings;
    private final String expected;
    private final Communicator communicator;
    private final Stream stream;
    private int comparisons;

    private SameOptimizers(Supplier<String> settings, String expected, Communicator communicator, Stream stream) {
        this.settings = settings;
        this.expected = expected;
        this.communicator = communicator;
        this.stream = stream;
    }

    /** Compares ranks that update the same weights. */
    public static SameOptimizers ofWeights(Parameters parameters, Communicator communicator) {
        return new SameOptimizers(
                parameters.access()::optimizerSettings,
                "sumGradients: expected optimizers with the same settings on all ranks, since weights would diverge",
                communicator,
                parameters.scope().stream());
    }

    /** Compares ranks of a pipeline, which update parts of one model. */
    public static SameOptimizers ofModel(Parameters parameters, Communicator communicator) {
        return new SameOptimizers(
                parameters.access()::optimizerSettingsOfModel,
                "run: expected optimizers with the same settings on all ranks of the pipeline, as one rank would have"
                        + " for the whole model",
                communicator,
                parameters.scope().stream());
    }

    /**
     * Compares the settings unless that is done, and returns null, or on all ranks alike what to throw because two differ. While the stream
     * captures it does nothing, and leaves the comparison to the next enqueued call.
     */
    @Nullable
    public IllegalStateException difference() {
        if (comparisons == MOST_COMPARISONS || communicator.ranks() == 1 || Inside.capture(stream) != null) {
            return null;
        }
        byte[] own = settings.get().getBytes(StandardCharsets.UTF_8);
        CRC32C checksum = new CRC32C();
        checksum.update(own);
        long[] all = AllGatherLongs.ofAll(communicator, stream, own.length, checksum.getValue());
        int first = -1;
        int without = 0;
        for (int rank = 0; rank < communicator.ranks(); rank++) {
            if (all[NUMBERS * rank] == 0) {
                without++;
            } else if (first < 0) {
                first = rank;
            } else if (all[NUMBERS * rank] != all[NUMBERS * first]
                    || all[NUMBERS * rank + 1] != all[NUMBERS * first + 1]) {
                return difference(own, all, first, rank);
            }
        }
        comparisons = without == 0 ? MOST_COMPARISONS : comparisons + 1;
        return null;
    }

    /** Called by each rank, with the same numbers: exchanges the texts of the settings. */
    private IllegalStateException difference(byte[] own, long[] all, int first, int rank) {
        int longest = 0;
        for (int i = 0; i < communicator.ranks(); i++) {
            longest = Math.max(longest, (int) all[NUMBERS * i]);
        }
        byte[] texts = ofAll(Arrays.copyOf(own, longest));
        return new IllegalStateException(expected + ", got " + text(texts, longest, (int) all[NUMBERS * rank], rank)
                + " on rank "
                + rank + " and " + text(texts, longest, (int) all[NUMBERS * first], first) + " on rank " + first
                + "; give each optimizer the same config and groups");
    }

    private byte[] ofAll(byte... own) {
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor text = scope.tensor(DType.BYTE, own.length);
            Tensor all = scope.tensor(DType.BYTE, (long) own.length * communicator.ranks());
            text.set(stream, own);
            communicator.allGather(text, all, stream);
            communicator.synchronize(stream);
            return all.toBytes(stream);
        }
    }

    private static String text(byte[] texts, int longest, int length, int rank) {
        return new String(texts, rank * longest, length, StandardCharsets.UTF_8);
    }
}
