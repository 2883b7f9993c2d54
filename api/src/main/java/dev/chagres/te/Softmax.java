package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * Softmax over the last dimension of scaled attention scores, {@code p = exp(scale x - max) / sum exp(scale x - max)}, whole or
 * masked, and its gradient {@code dx = scale p (dp - sum p dp)}.
 *
 * <p>Scores are FLOAT16 or BFLOAT16, [b, h, sq, sk] ([b h, s, s] for the upper triangular one); arithmetic is FP32. Forward rounds the
 * scale to their type, backward does not. A mask tensor sets scores to -10,000; a causal mask sets probabilities to 0. Forward and backward
 * may work in place.
 *
 * <p>There are at most 16,384 keys sk; above 64, a multiple of 4, which a thread reads at once. The kernels without a causal mask take
 * several queries at once: {@link #queriesAtOnce} must divide sq, and for the triangular one b h.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code softmax.h}.
 */
public enum Softmax {
    /** All scores: {@code nvte_scaled_softmax_forward} and {@code …_backward}. */
    SCALED,
    /** Those that a tensor does not mask: {@code nvte_scaled_masked_softmax_forward} and {@code …_backward}. A row without any is 0. */
    MASKED,
    /** Query i sees keys 0 to i: {@code nvte_scaled_upper_triang_masked_softmax_forward} and {@code …_backward}. */
    UPPER_TRIANG_MASKED,
    /** Query i sees keys 0 to {@code i + sk - sq}: {@code nvte_scaled_aligned_causal_masked_softmax_forward} and {@code …_backward}. */
    ALIGNED_CAUSAL_MASKED;

    private static final long MOST_KEYS = 16_384;
    private static final long MOST_KEYS_ONE_BY_ONE = 64;
    private static final long KEYS_AT_ONCE = 4;

    private final String forwardFunction;
    private final String backwardFunction;

    Softmax() {
        String stem =
                "te_" + (name().startsWith("SCALED") ? "" : "scaled_") + name().toLowerCase(Locale.ROOT) + "_softmax_";
        forwardFunction = stem + "forward";
        backwardFunction = stem + "backward";
    }

    /** Returns how many queries a kernel takes at once; the number of queries must be a multiple of it. */
    public static long queriesAtOnce(long keys) {
        long power = Math.max(1, Long.highestOneBit(2 * Math.max(1, keys) - 1));
        return 128 / Math.min(power, 32) * (power <= 128 ? 2 : 1);
    }

    /**
     * Enqueues the softmax.
     *
     * @param input [b, h, sq, sk]; of {@link #UPPER_TRIANG_MASKED} [b h, s, s]
     * @param mask BYTE [b or 1, 1, sq, sk], 1 masks; null but for {@link #MASKED}
     * @param softmaxResults like input
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the results share memory otherwise
     */
    public void forward(Tensor input, @Nullable Tensor mask, Tensor softmaxResults, float scaleFactor, Stream stream) {
        checkScores("input", input, stream);
        if (this == MASKED) {
            checkMask(Checks.given("mask", mask), input, stream);
        } else if (mask != null) {
            throw new IllegalArgumentException(
                    "mask: expected none, for the softmax is " + this + ", got " + Checks.describe(mask));
        }
        written("softmaxResults", softmaxResults, "input", input, stream);
        if (mask != null) {
            Checks.apart("softmaxResults", softmaxResults, "mask", mask);
        }
        if (input.count() == 0) {
            return;
        }
        MemorySegment x = input.handle();
        MemorySegment y = softmaxResults.handle();
        MemorySegment queue = stream.handle();
        int status = switch (this) {
            case SCALED -> te_scaled_softmax_forward(x, y, scaleFactor, queue);
            case MASKED ->
                te_scaled_masked_softmax_forward(x, Checks.given("mask", mask).handle(), y, scaleFactor, queue);
            case UPPER_TRIANG_MASKED -> te_scaled_upper_triang_masked_softmax_forward(x, y, scaleFactor, queue);
            case ALIGNED_CAUSAL_MASKED -> te_scaled_aligned_causal_masked_softmax_forward(x, y, scaleFactor, queue);
        };
        Status.te(status, forwardFunction);
    }

    /**
     * Enqueues the gradient of {@link #forward}.
     *
     * @param incomingGrads like forward's input
     * @param softmaxResults what forward wrote
     * @param outputGrads like incomingGrads, may be it
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or outputGrads shares memory otherwise
     */
    public void backward(
            Tensor incomingGrads, Tensor softmaxResults, Tensor outputGrads, float scaleFactor, Stream stream) {
        checkScores("incomingGrads", incomingGrads, stream);
        Checks.like(stream, "softmaxResults", softmaxResults, incomingGrads);
        Checks.aligned("softmaxResults", softmaxResults);
        written("outputGrads", outputGrads, "incomingGrads", incomingGrads, stream);
        Checks.apart("outputGrads", outputGrads, "softmaxResults", softmaxResults);
        if (incomingGrads.count() == 0) {
            return;
        }
        MemorySegment dy = incomingGrads.handle();
        MemorySegment y = softmaxResults.handle();
        MemorySegment dx = outputGrads.handle();
        MemorySegment queue = stream.handle();
        int status = switch (this) {
            case SCALED -> te_scaled_softmax_backward(dy, y, dx, scaleFactor, queue);
            case MASKED -> te_scaled_masked_softmax_backward(dy, y, dx, scaleFactor, queue);
            case UPPER_TRIANG_MASKED -> te_scaled_upper_triang_masked_softmax_backward(dy, y, dx, scaleFactor, queue);
            case ALIGNED_CAUSAL_MASKED ->
                te_scaled_aligned_causal_masked_softmax_backward(dy, y, dx, scaleFactor, queue);
        };
        Status.te(status, backwardFunction);
    }

    private void checkScores(String argument, Tensor tensor, Stream stream) {
        scores(argument, tensor, this == UPPER_TRIANG_MASKED ? 3 : 4, stream);
        switch (this) {
            case SCALED, MASKED -> divides(argument, tensor, 2);
            case UPPER_TRIANG_MASKED -> {
                if (tensor.size(1) != tensor.size(2)) {
                    throw new IllegalArgumentException(argument + ": expected as many queries as keys, got "
                            + Checks.describe(tensor) + "; call ALIGNED_CAUSAL_MASKED");
                }
                divides(argument, tensor, 0);
            }
            case ALIGNED_CAUSAL_MASKED -> Checks.countedIn32Bits(argument, tensor);
        }
    }

    private static void checkMask(Tensor mask, Tensor input, Stream stream) {
        Checks.typed(stream, "mask", mask, DType.BYTE);
        boolean fits = mask.rank() == 4
                && (mask.size(0) == 1 || mask.size(0) == input.size(0))
                && mask.size(1) == 1
                && mask.size(2) == input.size(2)
                && mask.size(3) == input.size(3);
        if (!fits) {
            throw new IllegalArgumentException("mask: expected BYTE[" + input.size(0) + " or 1, 1, " + input.size(2)
                    + ", " + input.size(3) + "], got " + Checks.describe(mask));
        }
        Checks.aligned("mask", mask);
    }

    private static void scores(String argument, Tensor tensor, int rank, Stream stream) {
        Checks.on(stream, argument, tensor);
        boolean halves = tensor.dtype() == DType.FLOAT16 || tensor.dtype() == DType.BFLOAT16;
        if (!halves || tensor.rank() != rank || tensor.size(rank - 1) > MOST_KEYS) {
            throw new IllegalArgumentException(argument + ": expected FLOAT16 or BFLOAT16 of "
                    + (rank == 3 ? "[b h, s, s]" : "[b, h, sq, sk]") + " with at most 16384 keys, got "
                    + Checks.describe(tensor));
        }
        long keys = tensor.size(rank - 1);
        if (keys > MOST_KEYS_ONE_BY_ONE && keys % KEYS_AT_ONCE != 0) {
            throw new IllegalArgumentException(
                    argument + ": expected a multiple of 4 keys, as many as a thread of TE's kernel"
                            + " reads at once beyond 64, got " + Checks.describe(tensor) + "; pad with masked keys");
        }
        Checks.aligned(argument, tensor);
    }

    private static void divides(String argument, Tensor scores, int dimension) {
        long keys = scores.size(scores.rank() - 1);
        long step = queriesAtOnce(keys);
        if (keys != 0 && scores.size(dimension) % step != 0) {
            throw new IllegalArgumentException(
                    argument + ": expected " + (dimension == 0 ? "b h" : "sq") + " a multiple of "
                            + step + ", as many as TE's kernel takes at once with " + keys + " keys, got "
                            + Checks.describe(scores));
        }
    }

    private static void written(String argument, Tensor tensor, String readArgument, Tensor read, Stream stream) {
        Checks.like(stream, argument, tensor, read);
        Checks.aligned(argument, tensor);
        Checks.writable(argument, tensor);
        Checks.apartOrSame(argument, tensor, readArgument, read);
    }
}
