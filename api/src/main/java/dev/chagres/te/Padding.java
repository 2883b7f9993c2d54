package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Pads many matrices with rows of zeros, and removes them again, by a few kernels: products in eight bits need a number of rows that is a
 * multiple of 16.
 *
 * <p>All matrices have one type, any {@link DType} that Transformer Engine has; elements are copied bit by bit, so that FP8 numbers keep
 * their scale. Outputs overlap no other tensor. Without matrices, or without elements in them, there is nothing to do.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code padding.h}.
 */
public final class Padding {
    private Padding() {}

    /**
     * Enqueues {@code output[m, k] = input[m, k]}, and 0 in the rows beyond the input's, {@code nvte_multi_padding}.
     *
     * @param inputs matrices [M, K] of one type, M and K of their own
     * @param outputs as many, each of at least as many rows as its input and as many columns, in the type of the inputs
     * @throws IllegalArgumentException when numbers, shapes, types or devices do not fit, or an output shares memory
     */
    public static void multiPadding(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        check(inputs, outputs, stream);
        for (int i = 0; i < inputs.length; i++) {
            if (outputs[i].size(0) < inputs[i].size(0)) {
                throw new IllegalArgumentException("pair " + i + ", output: expected at least " + inputs[i].size(0)
                        + " rows, as the input has, got " + Checks.describe(outputs[i]));
            }
        }
        HandleArrays arrays = HandleArrays.of(stream, inputs.length); // inputs, outputs, and the outputs' rows
        int count = list(inputs, outputs, arrays, stream);
        if (count != 0) {
            Status.te(
                    TransformerEngine.te_multi_padding(
                            count, arrays.first(), arrays.second(), arrays.numbers(), stream.handle()),
                    "te_multi_padding");
        }
    }

    /**
     * Enqueues {@code output[m, k] = input[m, k]} for the rows of the output, {@code nvte_multi_unpadding}.
     *
     * @param inputs matrices [M, K] of one type, M and K of their own
     * @param outputs as many, each of at most as many rows as its input and as many columns, in the type of the inputs
     * @throws IllegalArgumentException when numbers, shapes, types or devices do not fit, or an output shares memory
     */
    public static void multiUnpadding(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        check(inputs, outputs, stream);
        for (int i = 0; i < inputs.length; i++) {
            if (outputs[i].size(0) > inputs[i].size(0)) {
                throw new IllegalArgumentException("pair " + i + ", output: expected at most " + inputs[i].size(0)
                        + " rows, as the input has, got " + Checks.describe(outputs[i]));
            }
        }
        HandleArrays arrays = HandleArrays.of(stream, inputs.length); // inputs, outputs, and the outputs' rows
        int count = list(inputs, outputs, arrays, stream);
        if (count != 0) {
            Status.te(
                    TransformerEngine.te_multi_unpadding(
                            count, arrays.first(), arrays.second(), arrays.numbers(), stream.handle()),
                    "te_multi_unpadding");
        }
    }

    /** Lists the pairs that have elements, and returns their number; an output without an input's elements becomes 0. */
    private static int list(Tensor[] inputs, Tensor[] outputs, HandleArrays arrays, Stream stream) {
        ByteHandles handles = ByteHandles.of(stream);
        int count = 0;
        for (int i = 0; i < inputs.length; i++) {
            Tensor output = outputs[i];
            if (inputs[i].count() != 0 && output.count() != 0) {
                MemorySegment input = handles.handle(2 * count, inputs[i]);
                long target = handles.handle(2 * count + 1, output).address();
                arrays.set(count++, input, target, Math.toIntExact(output.size(0)));
            } else if (output.count() != 0) {
                output.zero(stream);
            }
        }
        return count;
    }

    private static void check(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        checkNumbers(inputs, outputs, stream);
        for (int i = 0; i < inputs.length; i++) {
            checkPair(inputs, outputs, i, stream);
        }
        checkApart(inputs, outputs);
    }

    /** Checks that there are as many outputs as inputs. */
    static void checkNumbers(Tensor[] inputs, Tensor[] outputs, Stream stream) {
        Checks.given("stream", stream);
        if (Checks.givenAll("inputs", inputs).length != Checks.givenAll("outputs", outputs).length) {
            throw new IllegalArgumentException(
                    "outputs: expected " + inputs.length + ", one per input, got " + outputs.length);
        }
    }

    /** Checks that no output shares memory with an input or another output. */
    static void checkApart(Tensor[] inputs, Tensor[] outputs) {
        for (int i = 0; i < inputs.length; i++) {
            for (int j = 0; j < inputs.length; j++) {
                checkApart(inputs, outputs, i, j);
            }
        }
    }

    private static void checkPair(Tensor[] inputs, Tensor[] outputs, int i, Stream stream) {
        Tensor input = inputs[i];
        Tensor output = outputs[i];
        Checks.on(stream, "input", input);
        Checks.on(stream, "output", output);
        Checks.withCode(i, "input", input);
        DType dtype = inputs[0].dtype();
        if (input.rank() != 2 || input.dtype() != dtype) {
            throw new IllegalArgumentException("pair " + i + ", input: expected a matrix of " + dtype
                    + ", the type of the first, got " + Checks.describe(input));
        }
        if (output.rank() != 2 || output.size(1) != input.size(1) || output.dtype() != dtype) {
            throw new IllegalArgumentException("pair " + i + ", output: expected " + dtype + "[M, " + input.size(1)
                    + "], got " + Checks.describe(output));
        }
        if (output.size(0) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(
                    "pair " + i + ", output: expected fewer than 2^31 rows, got " + Checks.describe(output));
        }
        Checks.writable("output", output);
    }

    /** Checks that the output of pair i overlaps neither its own input nor a tensor of the other pair. */
    private static void checkApart(Tensor[] inputs, Tensor[] outputs, int i, int j) {
        if (Checks.overlaps(outputs[i], inputs[j]) || (i != j && Checks.overlaps(outputs[i], outputs[j]))) {
            Tensor other = Checks.overlaps(outputs[i], inputs[j]) ? inputs[j] : outputs[j];
            Checks.apart("output " + i, outputs[i], (other == inputs[j] ? "input " : "output ") + j, other);
        }
    }

    /**
     * Handles of matrices that a call copies. For FP8 TE requires a scale, which a copy does not use, so the handles of FP8 matrices declare
     * bytes. They are made once per device and described anew in each call.
     */
    private static final class ByteHandles implements AutoCloseable {
        private static final DeviceState.Attachment<ByteHandles> ATTACHMENT =
                new DeviceState.Attachment<>(ByteHandles::new);

        private final BasicTensor description;
        private final List<MemorySegment> made = new ArrayList<>();

        private ByteHandles(DeviceState device) {
            description = device.basicTensor();
        }

        /** Returns the handles of the stream's device. */
        static ByteHandles of(Stream stream) {
            return Inside.state(stream).get(ATTACHMENT);
        }

        /** Returns a handle of the matrix; each matrix of a call has its own {@code index}. */
        MemorySegment handle(int index, Tensor matrix) {
            if (!matrix.dtype().isFloat8()) {
                return matrix.handle();
            }
            while (made.size() <= index) {
                made.add(description.create());
            }
            MemorySegment handle = made.get(index);
            description
                    .at(matrix.address(), DType.BYTE.code())
                    .matrix(matrix.size(0), matrix.size(1))
                    .writeTo(handle);
            return handle;
        }

        @Override
        public void close() {
            for (MemorySegment handle : made) {
                TransformerEngine.te_destroy_tensor(handle);
            }
        }
    }
}
