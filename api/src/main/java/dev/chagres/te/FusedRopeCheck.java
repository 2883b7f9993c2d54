package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of {@link FusedRope}.
 *
 * <p>Threading: the device's thread.
 */
final class FusedRopeCheck {
    private FusedRopeCheck() {}

    static void check(
            String inputArgument,
            Tensor input,
            @Nullable Tensor cuSeqlens,
            Tensor freqs,
            @Nullable Tensor startPositions,
            String outputArgument,
            Tensor output,
            QkvFormat format,
            long longest,
            Stream stream) {
        Checks.given("format", format);
        heads(inputArgument, input, format, stream);
        Checks.like(stream, outputArgument, output, input);
        angles(freqs, input.size(input.rank() - 1), stream);
        long sequences = lengths(inputArgument, input, cuSeqlens, format, longest, stream);
        if (longest < 0 || longest > freqs.size(0)) {
            throw new IllegalArgumentException(
                    "longest: expected at most the " + freqs.size(0) + " positions of freqs, got " + longest);
        }
        Checks.writable(outputArgument, output);
        Checks.apart(outputArgument, output, inputArgument, input);
        Checks.apart(outputArgument, output, "freqs", freqs);
        if (startPositions != null) {
            Checks.vector(stream, "startPositions", startPositions, DType.INT32, sequences);
            Checks.apart(outputArgument, output, "startPositions", startPositions);
        }
        if (cuSeqlens != null) {
            Checks.apart(outputArgument, output, "cuSeqlens", cuSeqlens);
        }
    }

    /** Checks a tensor of heads over tokens. */
    static void heads(String argument, Tensor tensor, QkvFormat format, Stream stream) {
        shaped(argument, tensor, format.rank(), format.shape(), stream);
    }

    /** Checks type, rank and number of elements; {@code letters} names the dimensions in the error. */
    static void shaped(String argument, Tensor tensor, int rank, String letters, Stream stream) {
        Checks.floats(stream, argument, tensor);
        if (tensor.rank() != rank) {
            throw new IllegalArgumentException(argument + ": expected " + letters + ", got " + Checks.describe(tensor));
        }
        Checks.countedIn32Bits(argument, tensor);
    }

    /** Returns the number of positions that there are angles for. */
    static long positions(Tensor freqs, Stream stream) {
        Checks.typed(stream, "freqs", freqs, DType.FLOAT32);
        return freqs.rank() == 0 ? 0 : freqs.size(0);
    }

    private static void angles(Tensor freqs, long headDim, Stream stream) {
        Checks.typed(stream, "freqs", freqs, DType.FLOAT32);
        boolean shaped = freqs.rank() == 4 && freqs.size(1) == 1 && freqs.size(2) == 1;
        long rotated = shaped ? freqs.size(3) : 0;
        if (rotated < 2 || rotated % 2 != 0 || rotated > headDim) {
            throw new IllegalArgumentException("freqs: expected FLOAT32[positions, 1, 1, r] with r even, from 2 to the"
                    + " head dimension " + headDim + ", got " + Checks.describe(freqs));
        }
    }

    private static long lengths(
            String inputArgument,
            Tensor input,
            @Nullable Tensor cuSeqlens,
            QkvFormat format,
            long longest,
            Stream stream) {
        if (format == QkvFormat.THD) {
            Tensor offsets = Checks.typed(stream, "cuSeqlens", Checks.given("cuSeqlens", cuSeqlens), DType.INT32);
            if (offsets.rank() != 1 || offsets.size(0) == 0) {
                throw new IllegalArgumentException("cuSeqlens: expected INT32[B + 1], got " + Checks.describe(offsets));
            }
            return offsets.size(0) - 1;
        }
        if (cuSeqlens != null) {
            throw new IllegalArgumentException(
                    "cuSeqlens: expected null for padded tokens, " + format + ", got " + Checks.describe(cuSeqlens));
        }
        int batch = format == QkvFormat.BSHD ? 0 : 1;
        if (longest != input.size(1 - batch)) {
            throw new IllegalArgumentException("longest: expected the padded length of " + inputArgument + ", "
                    + input.size(1 - batch) + ", got " + longest);
        }
        return input.size(batch);
    }
}
