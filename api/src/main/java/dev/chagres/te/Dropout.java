package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;
import java.lang.foreign.MemorySegment;

/**
 * Dropout by Transformer Engine's own kernels. The layers call {@link dev.chagres.ops.Dropout} instead, which adds a residual, takes any
 * number of elements, and resolves the probability to 32 bits.
 *
 * <p>Each group of 16 elements draws 16 bytes of the Philox4x32-10 subsequence with the group's number; an element is dropped if its byte
 * is below {@code floor(256 probability)}. So the real probability is a multiple of 1/256, while kept elements are scaled by {@code 1 / (1
 * - probability)} with the probability given. Every provider drops the same elements. A call consumes 4 words of each subsequence: add 4 to
 * the offset for the next call.
 *
 * <p>The number of elements is a multiple of 16. Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_dropout_fwd}, {@code nvte_dropout_bwd} in TE's {@code dropout.h}.
 */
public final class Dropout {
    private static final int CHUNK = 16;
    private static final int BITS_A_BYTE = 8;

    private Dropout() {}

    /**
     * Enqueues {@code output = keep input / (1 - probability)}, {@code nvte_dropout_fwd}.
     *
     * @param input FLOAT16 or BFLOAT16, of any shape
     * @param output like input
     * @param mask BYTE [count / 8]: receives one bit per element, the lowest first, 1 where it is kept
     * @param rngState INT64 [2]: seed and offset
     * @param probability of dropping an element, at least 0 and below 1
     * @throws IllegalArgumentException when shapes, types, probability or devices do not fit, or what is written shares memory
     */
    public static void dropoutFwd(
            Tensor input, Tensor output, Tensor mask, Tensor rngState, float probability, Stream stream) {
        halves("input", input, stream);
        chunks("input", input);
        Checks.like(stream, "output", output, input);
        checkDrawn(output, mask, rngState, probability, stream);
        written("output", output, "input", input);
        Checks.apart("mask", mask, "input", input);
        Checks.aligned("input", input);
        dropoutFwd(input.handle(), output, mask, rngState, probability, stream);
    }

    /**
     * Enqueues dropout of dequantized FP8 data, {@code output = keep q scaleInverse / (1 - probability)}, {@code nvte_dropout_fwd}.
     *
     * @param input [M, K], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data
     * @param output [M, K], FLOAT16 or BFLOAT16
     * @param mask BYTE [count / 8]: receives one bit per element, the lowest first, 1 where it is kept
     * @param rngState INT64 [2]: seed and offset
     * @param probability of dropping an element, at least 0 and below 1
     * @throws IllegalArgumentException when shapes, types, parts, probability or devices do not fit, or what is written shares memory
     */
    public static void dropoutFwd(
            QuantizedTensor input, Tensor output, Tensor mask, Tensor rngState, float probability, Stream stream) {
        QuantizedChecks.on(stream, "input", input);
        QuantizedChecks.requireTensorScaling("input", input, "TE's dropout knows one scale");
        Tensor data = QuantizedChecks.requireRowwise("input", input, "that is what is dropped");
        halves("output", output, stream);
        if (output.rank() != 2 || output.size(0) != input.rows() || output.size(1) != input.columns()) {
            throw new IllegalArgumentException(
                    "output: expected [" + input.rows() + ", " + input.columns() + "], got " + Checks.describe(output));
        }
        chunks("output", output);
        checkDrawn(output, mask, rngState, probability, stream);
        QuantizedChecks.apart("output", output, "input", input);
        QuantizedChecks.apart("mask", mask, "input", input);
        Checks.aligned("input", data);
        dropoutFwd(input.handle(), output, mask, rngState, probability, stream);
    }

    /**
     * Enqueues {@code gradInput = keep gradOutput / (1 - probability)}, {@code nvte_dropout_bwd}.
     *
     * @param gradOutput gradient of what forward wrote, FLOAT16 or BFLOAT16, of any shape
     * @param mask what forward wrote
     * @param gradInput like gradOutput
     * @param probability that of forward
     * @throws IllegalArgumentException when shapes, types, probability or devices do not fit, or gradInput shares memory
     */
    public static void dropoutBwd(Tensor gradOutput, Tensor mask, Tensor gradInput, float probability, Stream stream) {
        halves("gradOutput", gradOutput, stream);
        chunks("gradOutput", gradOutput);
        Checks.vector(stream, "mask", mask, DType.BYTE, gradOutput.count() / BITS_A_BYTE);
        Checks.like(stream, "gradInput", gradInput, gradOutput);
        Checks.probability("probability", probability);
        written("gradInput", gradInput, "gradOutput", gradOutput);
        Checks.apart("gradInput", gradInput, "mask", mask);
        Checks.aligned("gradOutput", gradOutput);
        if (gradOutput.count() != 0) {
            Status.te(
                    TransformerEngine.te_dropout_bwd(
                            gradOutput.handle(), mask.handle(), gradInput.handle(), probability, stream.handle()),
                    "te_dropout_bwd");
        }
    }

    private static void dropoutFwd(
            MemorySegment input, Tensor output, Tensor mask, Tensor rngState, float probability, Stream stream) {
        if (output.count() != 0) {
            Status.te(
                    TransformerEngine.te_dropout_fwd(
                            input, output.handle(), mask.handle(), rngState.handle(), probability, stream.handle()),
                    "te_dropout_fwd");
        }
    }

    private static void halves(String argument, Tensor tensor, Stream stream) {
        Checks.on(stream, argument, tensor);
        if (tensor.dtype() != DType.FLOAT16 && tensor.dtype() != DType.BFLOAT16) {
            throw new IllegalArgumentException(argument + ": expected elements of FLOAT16 or BFLOAT16, got "
                    + Checks.describe(tensor) + "; ops.Dropout takes FLOAT32");
        }
    }

    private static void chunks(String argument, Tensor tensor) {
        if (tensor.count() % CHUNK != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of " + CHUNK
                    + " elements, which TE's kernel takes at once, got " + Checks.describe(tensor)
                    + "; ops.Dropout takes any number");
        }
    }

    private static void checkDrawn(Tensor output, Tensor mask, Tensor rngState, float probability, Stream stream) {
        Checks.vector(stream, "mask", mask, DType.BYTE, output.count() / BITS_A_BYTE);
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.probability("probability", probability);
        written("mask", mask, "output", output);
        Checks.apart("mask", mask, "rngState", rngState);
        Checks.written("output", output, "rngState", rngState);
        Checks.aligned("output", output);
    }

    private static void written(String argument, Tensor tensor, String otherArgument, Tensor other) {
        Checks.written(argument, tensor, otherArgument, other);
        Checks.aligned(argument, tensor);
    }
}
