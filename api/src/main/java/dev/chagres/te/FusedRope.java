package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.HandleArrays.UnsetTensor;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Rotary position embedding of a tensor of heads into another. The angle of a token's position rotates each pair {@code (a, b)} of a head's
 * first r elements to {@code (a cos - b sin, b cos + a sin)}; the elements behind them are copied.
 *
 * <p>Positions count from 0 in each sequence, or from its start position. The gradient takes the inverse rotation.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_rope_forward}, {@code nvte_fused_rope_backward} in TE's {@code fused_rope.h}; Su et al.,
 * RoFormer (2021).
 *
 * @param freqs angles, FLOAT32 [positions, 1, 1, r], r even and at most d
 * @param pairing which two of a head's r rotated elements form a pair
 */
public record FusedRope(Tensor freqs, Pairing pairing) {
    /** Which two of a head's r rotated elements form a pair. */
    public enum Pairing {
        /** i and i + r/2; columns i and i + r/2 of the angles are equal. */
        HALVES,
        /** 2i and 2i + 1; columns 2i and 2i + 1 of the angles are equal. */
        INTERLEAVED
    }

    /** Makes rotations by angles, which each call checks. */
    public FusedRope {
        Checks.given("freqs", freqs, "pairing", pairing);
    }

    /**
     * Enqueues the rotation, {@code nvte_fused_rope_forward}. Rows of packed tokens behind the last sequence stay as they
     * are.
     *
     * @param input floating-point numbers [T, h, d], [B, S, h, d] or [S, B, h, d], as the format says
     * @param cuSeqlens THD: INT32 [B + 1], where each sequence begins, which is trusted; else null
     * @param startPositions INT32 [B], the position of each sequence's first token, which is trusted; null: all 0
     * @param output like the input
     * @param longest padded formats: S; THD: a length that no sequence exceeds. At most positions
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public void forward(
            Tensor input,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            Tensor output,
            QkvFormat format,
            long longest,
            Stream stream) {
        check("input", input, cuSeqlens, startPositions, "output", output, format, longest, stream);
        if (input.count() != 0) {
            Status.te(
                    enqueue(
                            TransformerEngine::te_fused_rope_forward,
                            input,
                            cuSeqlens,
                            startPositions,
                            output,
                            format,
                            longest,
                            stream),
                    "te_fused_rope_forward");
        }
    }

    /**
     * Enqueues the rotation of packed sequences that may be as long as there are positions. If they are shorter, passing their longest
     * length starts fewer threads.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the output shares memory
     */
    public void forward(
            Tensor input,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            Tensor output,
            QkvFormat format,
            Stream stream) {
        forward(input, cuSeqlens, startPositions, output, format, longest("input", input, format, stream), stream);
    }

    /**
     * Enqueues the inverse rotation, {@code nvte_fused_rope_backward}: the gradient of {@link #forward}, with the parameters of that call.
     *
     * @param outputGrads gradient of the output, like the output
     * @param inputGrads gradient of the input, like the input
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or inputGrads shares memory
     */
    public void backward(
            Tensor outputGrads,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            Tensor inputGrads,
            QkvFormat format,
            long longest,
            Stream stream) {
        check("outputGrads", outputGrads, cuSeqlens, startPositions, "inputGrads", inputGrads, format, longest, stream);
        if (outputGrads.count() != 0) {
            Status.te(
                    enqueue(
                            TransformerEngine::te_fused_rope_backward,
                            outputGrads,
                            cuSeqlens,
                            startPositions,
                            inputGrads,
                            format,
                            longest,
                            stream),
                    "te_fused_rope_backward");
        }
    }

    /**
     * Enqueues the inverse rotation of packed sequences that may be as long as there are positions.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or inputGrads shares memory
     */
    public void backward(
            Tensor outputGrads,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            Tensor inputGrads,
            QkvFormat format,
            Stream stream) {
        long longest = longest("outputGrads", outputGrads, format, stream);
        backward(outputGrads, cuSeqlens, startPositions, inputGrads, format, longest, stream);
    }

    private long longest(String argument, Tensor input, QkvFormat format, Stream stream) {
        Checks.given("format", format);
        if (format == QkvFormat.THD) {
            Checks.typed(stream, "freqs", freqs, DType.FLOAT32);
            return freqs.rank() == 0 ? 0 : freqs.size(0);
        }
        heads(argument, input, format, stream);
        return input.size(format == QkvFormat.BSHD ? 1 : 0);
    }

    private int enqueue(
            Rotation rotation,
            Tensor x,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            Tensor y,
            QkvFormat format,
            long longest,
            Stream stream) {
        int heads = (int) x.size(x.rank() - 2);
        int headDim = (int) x.size(x.rank() - 1);
        int token = heads * headDim;
        int sequences = (int) (cuSeqlens != null ? cuSeqlens.count() - 1 : x.size(format == QkvFormat.BSHD ? 0 : 1));
        return rotation.call(
                x.handle(),
                handle(cuSeqlens, stream),
                freqs.handle(),
                handle(startPositions, stream),
                y.handle(),
                format.code(),
                pairing == Pairing.INTERLEAVED,
                1,
                0,
                (int) longest,
                sequences,
                heads,
                headDim,
                (int) freqs.size(3),
                format == QkvFormat.SBHD ? sequences * token : token,
                format == QkvFormat.THD ? 0 : format == QkvFormat.BSHD ? (int) x.size(1) * token : token,
                headDim,
                1,
                stream.handle());
    }

    /** Returns the tensor's handle, or that of an empty tensor. */
    static MemorySegment handle(@Nullable Tensor tensor, Stream stream) {
        return tensor == null ? Inside.state(stream).get(UnsetTensor.ATTACHMENT).handle : tensor.handle();
    }

    private void check(
            String inputArgument,
            Tensor input,
            @Nullable Tensor cuSeqlens,
            @Nullable Tensor startPositions,
            String outputArgument,
            Tensor output,
            QkvFormat format,
            long longest,
            Stream stream) {
        Checks.given("format", format);
        heads(inputArgument, input, format, stream);
        Checks.like(stream, outputArgument, output, input);
        angles(input.size(input.rank() - 1), stream);
        long sequences = lengths(inputArgument, input, cuSeqlens, format, longest, stream);
        if (longest < 0 || longest > freqs.size(0)) {
            throw new IllegalArgumentException(
                    "longest: expected at most the " + freqs.size(0) + " positions of freqs, got " + longest);
        }
        Checks.written(outputArgument, output, inputArgument, input, "freqs", freqs);
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

    private void angles(long headDim, Stream stream) {
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

    /** TE's two functions, which take the same arguments. */
    @FunctionalInterface
    private interface Rotation {
        int call(
                MemorySegment x,
                MemorySegment cuSeqlens,
                MemorySegment freqs,
                MemorySegment startPositions,
                MemorySegment y,
                int format,
                boolean interleaved,
                int contextParallelSize,
                int contextParallelRank,
                int longest,
                int sequences,
                int heads,
                int headDim,
                int rotatedDim,
                int tokenStride,
                int sequenceStride,
                int headStride,
                int elementStride,
                MemorySegment stream);
    }
}
