package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;

/**
 * The random Hadamard transform: each group of 16 neighbours becomes 16 signed sums of them. If both operands of a product are transformed
 * with one mask along the summed dimension, the product stays the same, while outliers are spread over 16 elements; this reduces the error
 * of casts to few bits.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_hadamard_transform} in TE's {@code hadamard_transform.h}; the others there need compute capability 10.0.
 */
public final class HadamardTransform {
    /** How many neighbours are transformed together. */
    public static final int SIZE = 16;

    private static final int MOST_SIGNS = (1 << SIZE) - 1;
    /** Blocks of 64 rows are numbered with 16 bits on the GPU. */
    private static final long MOST_ROWS = 65_535 * 64L;
    /** Bytes of a row that the kernel stores at once. */
    private static final long STORE_BYTES = 32;

    private HadamardTransform() {}

    /**
     * Enqueues the transform along the columns of {@code input}, with the result transposed:
     *
     * <pre>{@code output[k, 16 b + n] = 1/4 sum over i of 0..15 of s(n & i) s(randomSignMask >> i & 1) input[16 b + i, k]}</pre>
     *
     * where s(bits) is -1 where an odd number of bits is 1, else 1. Sums are FP32, rounded once.
     *
     * @param input BFLOAT16 [M, K], M and K multiples of 16, M at most 4,194,240
     * @param output BFLOAT16 [K, M], its memory at a multiple of 32 bytes
     * @param randomSignMask 16 bits, 0 to 65,535, drawn once by the caller: bit i flips the sign of the rows 16 b + i
     * @throws IllegalArgumentException when shapes, types, devices or the mask do not fit, or output shares memory with input
     */
    public static void hadamardTransform(Tensor input, Tensor output, int randomSignMask, Stream stream) {
        checkInput(input, stream);
        Checks.matrix(stream, "output", output, DType.BFLOAT16, input.size(1), input.size(0));
        if (randomSignMask < 0 || randomSignMask > MOST_SIGNS) {
            throw new IllegalArgumentException(
                    "randomSignMask: expected " + SIZE + " bits, 0 to " + MOST_SIGNS + ", got " + randomSignMask);
        }
        Checks.written("output", output, "input", input);
        Checks.aligned("input", input);
        if (Inside.address(output) % STORE_BYTES != 0) {
            throw new IllegalArgumentException("output: expected memory that begins at a multiple of " + STORE_BYTES
                    + " bytes, as every tensor of a scope does, got a view that does not; copy it from a tensor");
        }
        if (input.count() != 0) {
            // The first mask belongs to an output that this function of TE does not write.
            Status.te(
                    TransformerEngine.te_hadamard_transform(
                            input.handle(), output.handle(), randomSignMask, randomSignMask, stream.handle()),
                    "te_hadamard_transform");
        }
    }

    private static void checkInput(Tensor input, Stream stream) {
        Checks.on(stream, "input", input);
        boolean fits = input.rank() == 2
                && input.dtype() == DType.BFLOAT16
                && input.size(0) % SIZE == 0
                && input.size(1) % SIZE == 0
                && input.size(0) <= MOST_ROWS;
        if (!fits) {
            throw new IllegalArgumentException("input: expected a matrix of BFLOAT16 whose sizes are multiples of "
                    + SIZE + ", of at most " + MOST_ROWS + " rows, got " + Checks.describe(input));
        }
    }
}
