package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;

/**
 * Computes the offsets of splits from their sizes: cumulative sums times a stride. Sizes and offsets stay on the device. Sums that do not
 * fit wrap around.
 *
 * <p>Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_splits_to_offsets*} in TE's {@code transformer_engine.h}.
 */
public final class SplitsToOffsets {
    private SplitsToOffsets() {}

    /**
     * Enqueues {@code output[0] = 0} and {@code output[i + 1] = stride (splitSizes[0] + ... + splitSizes[i])},
     * {@code nvte_splits_to_offsets}.
     *
     * @param splitSizes INT64 [N]
     * @param output INT64 [N + 1]
     * @param stride above 0
     * @throws IllegalArgumentException when shapes, types, the stride or devices do not fit, or output shares memory
     */
    public static void splitsToOffsets(Tensor splitSizes, Tensor output, long stride, Stream stream) {
        vector(stream, "splitSizes", splitSizes);
        Checks.typed(stream, "splitSizes", splitSizes, DType.INT64);
        Checks.vector(stream, "output", output, DType.INT64, splitSizes.count() + 1);
        positive(stride);
        Checks.written("output", output, "splitSizes", splitSizes);
        if (splitSizes.count() == 0) {
            output.zero(stream);
            return;
        }
        Status.te(
                AddressCalls.te_splits_to_offsets(
                        splitSizes.address(), output.address(), splitSizes.count(), stride, stream.handle()),
                "te_splits_to_offsets");
    }

    /**
     * Enqueues {@code output[0] = 0} and {@code output[i + 1] = output[i] + firstDims[i] lastDims[i]},
     * {@code nvte_splits_to_offsets_2d}: the offsets of matrices that lie one after another.
     *
     * @param firstDims INT32 or INT64 [N]
     * @param lastDims INT32 or INT64 [N]
     * @param output INT32 or INT64 [N + 1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or output shares memory
     */
    public static void splitsToOffsets2d(Tensor firstDims, Tensor lastDims, Tensor output, Stream stream) {
        vector(stream, "firstDims", firstDims);
        long count = firstDims.count();
        if (vector(stream, "lastDims", lastDims).count() != count) {
            throw new IllegalArgumentException(
                    "lastDims: expected [" + count + "], as firstDims has, got " + Checks.describe(lastDims));
        }
        if (vector(stream, "output", output).count() != count + 1) {
            throw new IllegalArgumentException("output: expected [" + (count + 1)
                    + "], one more than firstDims has, got " + Checks.describe(output));
        }
        Checks.written("output", output, "firstDims", firstDims);
        Checks.written("output", output, "lastDims", lastDims);
        if (count == 0) {
            output.zero(stream);
            return;
        }
        Status.te(
                TransformerEngine.te_splits_to_offsets_2d(
                        firstDims.handle(), lastDims.handle(), output.handle(), stream.handle()),
                "te_splits_to_offsets_2d");
    }

    /**
     * Enqueues several outputs by one kernel, {@code nvte_splits_to_offsets_multi}. An output of N + 1 elements is what {@link
     * #splitsToOffsets} computes with its stride; one of N elements is the same without the leading 0.
     *
     * @param splitSizes INT32 or INT64 [N]
     * @param outputs each INT32 or INT64 [N] or [N + 1]
     * @param strides one per output, above 0
     * @throws IllegalArgumentException when numbers, shapes, types, strides or devices do not fit, or an output shares memory
     */
    public static void splitsToOffsetsMulti(Tensor splitSizes, Tensor[] outputs, long[] strides, Stream stream) {
        vector(stream, "splitSizes", splitSizes);
        if (Checks.givenAll("outputs", outputs).length != Checks.given("strides", strides).length) {
            throw new IllegalArgumentException(
                    "strides: expected " + outputs.length + ", one per output, got " + strides.length);
        }
        long count = splitSizes.count();
        for (int i = 0; i < outputs.length; i++) {
            checkOutput(splitSizes, outputs, i, stream);
            positive(strides[i]);
        }
        if (outputs.length == 0) {
            return;
        }
        if (count == 0) {
            for (Tensor output : outputs) {
                output.zero(stream);
            }
            return;
        }
        HandleArrays arrays = HandleArrays.of(stream, outputs.length); // outputs, strides, and whether a 0 leads
        for (int i = 0; i < outputs.length; i++) {
            arrays.set(i, outputs[i].handle(), strides[i], outputs[i].count() > count ? 1 : 0);
        }
        Status.te(
                TransformerEngine.te_splits_to_offsets_multi(
                        splitSizes.handle(),
                        arrays.first(),
                        arrays.second(),
                        arrays.numbers(),
                        outputs.length,
                        stream.handle()),
                "te_splits_to_offsets_multi");
    }

    private static void checkOutput(Tensor splitSizes, Tensor[] outputs, int i, Stream stream) {
        try {
            Tensor output = vector(stream, "output", outputs[i]);
            long count = splitSizes.count();
            if (output.count() != count && output.count() != count + 1) {
                throw new IllegalArgumentException("output: expected [" + count + "], or [" + (count + 1)
                        + "] with a leading 0, got " + Checks.describe(output));
            }
            Checks.written("output", output, "splitSizes", splitSizes);
            for (int j = 0; j < i; j++) {
                Checks.apart("output", output, "another output", outputs[j]);
            }
        } catch (IllegalArgumentException refusal) {
            throw new IllegalArgumentException("outputs[" + i + "], " + refusal.getMessage(), refusal);
        }
    }

    private static Tensor vector(Stream stream, String argument, Tensor tensor) {
        Checks.on(stream, argument, tensor);
        if (tensor.rank() != 1 || (tensor.dtype() != DType.INT32 && tensor.dtype() != DType.INT64)) {
            throw new IllegalArgumentException(
                    argument + ": expected a vector of INT32 or INT64, got " + Checks.describe(tensor));
        }
        return tensor;
    }

    private static void positive(long stride) {
        if (stride <= 0) {
            throw new IllegalArgumentException("stride: expected a positive number, got " + stride);
        }
    }
}
