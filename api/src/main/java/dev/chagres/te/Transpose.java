package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * Transposes, and casts fused with transposes. {@link Cast#quantize(Tensor, QuantizedTensor, Stream)} casts a single matrix with its
 * transpose.
 *
 * <p>Outputs overlap no other tensor.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code transpose.h}, and {@code nvte_transpose_with_noop} in {@code cast_transpose_noop.h}.
 */
public final class Transpose {
    private Transpose() {}

    /**
     * Enqueues {@code output[k, m] = input[m, k]}, {@code nvte_transpose}. It turns rowwise FP8 data into columnwise data, which with
     * {@link dev.chagres.Scaling#TENSOR} keeps its scale inverse.
     *
     * @param input [M, K], FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3 or FLOAT8_E5M2
     * @param output [K, M], in the type of input
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or output shares memory with input
     */
    public static void transpose(Tensor input, Tensor output, Stream stream) {
        checkTranspose(input, output, stream);
        if (input.count() != 0) {
            Status.te(TransformerEngine.te_transpose(input.handle(), output.handle(), stream.handle()), "te_transpose");
        }
    }

    /**
     * Enqueues {@link #transpose} unless a flag on the device says not to, {@code nvte_transpose_with_noop}, for example because the weight
     * has not changed.
     *
     * @param input [M, K], FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3 or FLOAT8_E5M2
     * @param noop FLOAT32 [1], read when the kernel runs: 1 leaves output as it is
     * @param output [K, M], in the type of input
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or output shares memory
     */
    public static void transposeWithNoop(Tensor input, Tensor noop, Tensor output, Stream stream) {
        checkTranspose(input, output, stream);
        Checks.vector(stream, "noop", noop, DType.FLOAT32, 1);
        Checks.apart("output", output, "noop", noop);
        if (input.count() != 0) {
            Status.te(
                    TransformerEngine.te_transpose_with_noop(
                            input.handle(), noop.handle(), output.handle(), stream.handle()),
                    "te_transpose_with_noop");
        }
    }

    private static void checkTranspose(Tensor input, Tensor output, Stream stream) {
        Checks.on(stream, "input", input);
        DType dtype = input.dtype();
        if (input.rank() != 2 || !(dtype.isFloat() || dtype.isFloat8())) {
            throw new IllegalArgumentException("input: expected a matrix of FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3 or"
                    + " FLOAT8_E5M2, got " + Checks.describe(input));
        }
        Checks.on(stream, "output", output);
        if (output.rank() != 2
                || output.size(0) != input.size(1)
                || output.size(1) != input.size(0)
                || output.dtype() != dtype) {
            throw new IllegalArgumentException("output: expected " + dtype + "[" + input.size(1) + ", " + input.size(0)
                    + "], got " + Checks.describe(output));
        }
        Checks.written("output", output, "input", input);
        Checks.aligned("input", input);
        Checks.aligned("output", output);
    }

    /**
     * Enqueues {@code output[j, i, ...] = input[i, j, ...]}, {@code nvte_swap_first_dims}: for example SBHD to BSHD.
     *
     * @param input two to four dimensions, of any type that Transformer Engine has
     * @param output the same with the first two exchanged, in the type of input
     * @throws IllegalArgumentException when shapes, types, alignment or devices do not fit, or output shares memory with input
     */
    public static void swapFirstDims(Tensor input, Tensor output, Stream stream) {
        Checks.on(stream, "input", input);
        Checks.on(stream, "output", output);
        Checks.withCode("input", input);
        if (input.rank() < 2) {
            throw new IllegalArgumentException(
                    "input: expected at least two dimensions, got " + Checks.describe(input));
        }
        boolean fits = output.rank() == input.rank()
                && output.dtype() == input.dtype()
                && output.size(0) == input.size(1)
                && output.size(1) == input.size(0);
        for (int i = 2; fits && i < input.rank(); i++) {
            fits = output.size(i) == input.size(i);
        }
        if (!fits) {
            throw new IllegalArgumentException("output: expected " + Checks.describe(input)
                    + " with the first two dimensions exchanged, got " + Checks.describe(output));
        }
        Checks.written("output", output, "input", input);
        Checks.aligned("input", input);
        Checks.aligned("output", output);
        if (input.count() != 0) {
            Status.te(
                    TransformerEngine.te_swap_first_dims(input.handle(), output.handle(), stream.handle()),
                    "te_swap_first_dims");
        }
    }

    /**
     * Enqueues quantizing of each input, such as all weights of a model, to rowwise and columnwise data by a few kernels, {@code
     * nvte_multi_cast_transpose}. Results are those of {@link Cast#quantize(Tensor, QuantizedTensor, Stream)}.
     *
     * @param inputs matrices of one type, FLOAT32, FLOAT16 or BFLOAT16
     * @param outputs as many, each of the shape of its input, of one type, scaled by {@link dev.chagres.Scaling#TENSOR}, with
     *     rowwise and columnwise data. No two may share memory
     * @throws IllegalArgumentException when numbers, shapes, types, parts or devices do not fit, or an output shares memory with
     *     its input
     */
    public static void multiCastTranspose(Tensor[] inputs, QuantizedTensor[] outputs, Stream stream) {
        Checks.given("stream", stream);
        if (Checks.given("inputs", inputs).length != Checks.given("outputs", outputs).length) {
            throw new IllegalArgumentException(
                    "outputs: expected " + inputs.length + ", one per input, got " + outputs.length);
        }
        for (int i = 0; i < inputs.length; i++) {
            checkPair(inputs, outputs, i, stream);
            for (int j = 0; j < i; j++) {
                checkApart(inputs, outputs, i, j);
            }
        }
        HandleArrays arrays = HandleArrays.of(stream, inputs.length);
        int count = 0;
        for (int i = 0; i < inputs.length; i++) {
            if (inputs[i].count() != 0) {
                arrays.set(count++, inputs[i].handle(), outputs[i].handle());
            }
        }
        if (count != 0) {
            MemorySegment first = arrays.first();
            Status.te(
                    TransformerEngine.te_multi_cast_transpose(count, first, arrays.second(), stream.handle()),
                    "te_multi_cast_transpose");
        }
    }

    /**
     * Enqueues {@code dx = [input f'(a) b, input f(a)]}, the gradient of a gated activation, quantized to rowwise and columnwise data by
     * one kernel, {@code nvte_dswiglu_cast_transpose} and the four others.
     *
     * @param activation GEGLU, QGEGLU, REGLU, SREGLU or SWIGLU
     * @param input gradient of the activation's output, [M, K], M a multiple of 4, K of 2 (FLOAT32: any K)
     * @param gatedActInput the activation's input [a, b], [M, 2K]
     * @param output dx, [M, 2K], scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise and columnwise data
     * @throws IllegalArgumentException when the activation has no such kernel, shapes, types, parts or devices do not fit, or
     *     output shares memory
     */
    public static void dactCastTranspose(
            Activation activation, Tensor input, Tensor gatedActInput, QuantizedTensor output, Stream stream) {
        if (!fusesGradientOf(activation)) {
            throw new IllegalArgumentException("activation: expected GEGLU, QGEGLU, REGLU, SREGLU or SWIGLU, whose"
                    + " gradients TE quantizes and transposes in one kernel, got " + activation
                    + "; call its backward");
        }
        Checks.matrix(stream, "input", input);
        long rows = input.size(0);
        long columns = 2 * input.size(1);
        Checks.matrix(stream, "gatedActInput", gatedActInput, input.dtype(), rows, columns);
        QuantizedChecks.output(stream, "output", output, rows, columns);
        QuantizedChecks.requireTensorScaling("output", output, "the kernel computes no block scales");
        QuantizedChecks.requireBoth("output", output, "the kernel makes both copies");
        QuantizedChecks.apart("output", output, "input", input);
        QuantizedChecks.apart("output", output, "gatedActInput", gatedActInput);
        QuantizedChecks.aligned("input", input, "output", output);
        Checks.aligned("gatedActInput", gatedActInput);
        QuantizedChecks.divisible("input", input, 4, 4);
        if (input.count() != 0) {
            MemorySegment dy = input.handle();
            MemorySegment x = gatedActInput.handle();
            callDactCastTranspose(activation, dy, x, output.handle(), stream.handle());
        }
    }

    /**
     * Enqueues {@code columnwise[k, m] = rowwise[m, k]} and {@code dbias[k] = scaleInverse sum over m of rowwise[m, k]}, the columnwise
     * data and bias gradient of a gradient with rowwise data, {@code nvte_fp8_transpose_dbias}.
     *
     * @param gradient [M, K], M and K multiples of 8, scaled by {@link dev.chagres.Scaling#TENSOR}, with rowwise data, which is
     *     read, and columnwise data, which is written
     * @param dbias [K], FLOAT32, FLOAT16 or BFLOAT16
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or what is written shares memory
     */
    public static void fp8TransposeDbias(QuantizedTensor gradient, Tensor dbias, Stream stream) {
        Fp8TransposeDbias.check(gradient, dbias, stream);
        if (gradient.rows() * gradient.columns() == 0) {
            dbias.zero(stream);
        } else {
            Fp8TransposeDbias.of(stream).run(gradient, dbias, stream);
        }
    }

    /** Returns whether {@link #dactCastTranspose} takes {@code activation}. */
    public static boolean fusesGradientOf(Activation activation) {
        return switch (Checks.given("activation", activation)) {
            case GEGLU, QGEGLU, REGLU, SREGLU, SWIGLU -> true;
            default -> false;
        };
    }

    private static void callDactCastTranspose(
            Activation activation, MemorySegment dy, MemorySegment x, MemorySegment dx, MemorySegment stream) {
        switch (activation) {
            case GEGLU ->
                Status.te(TransformerEngine.te_dgeglu_cast_transpose(dy, x, dx, stream), "te_dgeglu_cast_transpose");
            case QGEGLU ->
                Status.te(TransformerEngine.te_dqgeglu_cast_transpose(dy, x, dx, stream), "te_dqgeglu_cast_transpose");
            case REGLU ->
                Status.te(TransformerEngine.te_dreglu_cast_transpose(dy, x, dx, stream), "te_dreglu_cast_transpose");
            case SREGLU ->
                Status.te(TransformerEngine.te_dsreglu_cast_transpose(dy, x, dx, stream), "te_dsreglu_cast_transpose");
            case SWIGLU ->
                Status.te(TransformerEngine.te_dswiglu_cast_transpose(dy, x, dx, stream), "te_dswiglu_cast_transpose");
            default -> throw new IllegalStateException("activation " + activation + " was not checked");
        }
    }

    private static void checkPair(Tensor[] inputs, QuantizedTensor[] outputs, int i, Stream stream) {
        Tensor input = inputs[i];
        QuantizedTensor output = outputs[i];
        try {
            Checks.matrix(stream, "input", input);
            Checks.countedIn32Bits("input", input);
            QuantizedChecks.output(stream, "output", output, input.size(0), input.size(1));
            QuantizedChecks.requireTensorScaling("output", output, "TE casts several matrices with one scale each");
            QuantizedChecks.requireBoth("output", output, "the kernel makes both copies");
            QuantizedChecks.apart("output", output, "input", input);
            QuantizedChecks.aligned("input", input, "output", output);
            if (input.dtype() != inputs[0].dtype() || output.dtype() != outputs[0].dtype()) {
                throw new IllegalArgumentException("input: expected " + inputs[0].dtype() + " to " + outputs[0].dtype()
                        + " as the first pair, got " + input.dtype() + " to " + output.dtype());
            }
        } catch (IllegalArgumentException refusal) {
            throw new IllegalArgumentException("pair " + i + ", " + refusal.getMessage(), refusal);
        }
    }

    /** Checks that no output of a pair overlaps a tensor of another pair. */
    private static void checkApart(Tensor[] inputs, QuantizedTensor[] outputs, int i, int j) {
        QuantizedTensor other = outputs[j];
        try {
            QuantizedChecks.apart("output", outputs[i], "another pair's input", inputs[j]);
            QuantizedChecks.apart("output", outputs[i], "another pair's rowwise data", other.rowwise());
            QuantizedChecks.apart("output", outputs[i], "another pair's columnwise data", other.columnwise());
            QuantizedChecks.apart("output", outputs[i], "another pair's scale inverse", other.rowwiseScaleInverse());
            QuantizedChecks.apart("output", outputs[i], "another pair's amax", other.amax());
            QuantizedChecks.apart("another pair's output", other, "input", inputs[i]);
        } catch (IllegalArgumentException refusal) {
            throw new IllegalArgumentException("pairs " + j + " and " + i + ", " + refusal.getMessage(), refusal);
        }
    }

    /**
     * The call of {@code nvte_fp8_transpose_dbias}: TE reads the rowwise data of one tensor and writes the columnwise data as rowwise data of a
     * second handle, of which each device keeps one.
     */
    private static final class Fp8TransposeDbias implements AutoCloseable {
        private static final DeviceState.Attachment<Fp8TransposeDbias> ATTACHMENT =
                new DeviceState.Attachment<>(Fp8TransposeDbias::new);

        /** Rows and columns that the kernel takes at once. */
        private static final int AT_ONCE = 8;

        private final BasicTensor description;
        private final MemorySegment transposed;

        private Fp8TransposeDbias(DeviceState device) {
            description = device.basicTensor();
            transposed = description.create();
        }

        static Fp8TransposeDbias of(Stream stream) {
            return Inside.state(stream).get(ATTACHMENT);
        }

        static void check(QuantizedTensor gradient, Tensor dbias, Stream stream) {
            QuantizedChecks.on(stream, "gradient", gradient);
            QuantizedChecks.requireTensorScaling("gradient", gradient, "TE transposes no blocks");
            Tensor rowwise = QuantizedChecks.requireRowwise("gradient", gradient, "that is what is transposed");
            Tensor columnwise = QuantizedChecks.requireColumnwise("gradient", gradient, "that is what is written");
            if (gradient.rows() % AT_ONCE != 0 || gradient.columns() % AT_ONCE != 0) {
                throw new IllegalArgumentException("gradient: expected multiples of " + AT_ONCE
                        + " rows and columns, which" + " TE's kernel takes at once, got "
                        + QuantizedChecks.describe(gradient) + "; pad it with zeros");
            }
            Checks.aligned("gradient", rowwise);
            Checks.aligned("gradient", columnwise);
            Checks.writable("gradient", columnwise);
            Checks.apart("the gradient's columnwise data", columnwise, "the gradient's rowwise data", rowwise);
            Checks.floats(stream, "dbias", dbias);
            Checks.vector(stream, "dbias", dbias, dbias.dtype(), gradient.columns());
            Checks.aligned("dbias", dbias);
            Checks.writable("dbias", dbias);
            QuantizedChecks.apart("dbias", dbias, "gradient", gradient);
        }

        /** Enqueues the kernels for checked tensors with elements. */
        void run(QuantizedTensor gradient, Tensor dbias, Stream stream) {
            Tensor columnwise = gradient.columnwise();
            Tensor scaleInverse = gradient.rowwiseScaleInverse();
            if (columnwise == null || scaleInverse == null) {
                throw new IllegalStateException("gradient " + QuantizedChecks.describe(gradient) + " was not checked");
            }
            description
                    .at(columnwise.address(), gradient.dtype().code())
                    .matrix(gradient.columns(), gradient.rows())
                    .writeTo(transposed);
            description
                    .at(scaleInverse.address(), DType.FLOAT32.code())
                    .vector(1)
                    .writeTo(transposed, TransformerEngine.kNVTERowwiseScaleInv());
            AskedWorkspace space = AskedWorkspace.of(AskedWorkspace.Function.FP8_TRANSPOSE_DBIAS, null, stream)
                    .with(gradient.rows())
                    .with(gradient.columns());
            do {
                Status.te(
                        TransformerEngine.te_fp8_transpose_dbias(
                                gradient.handle(), transposed, dbias.handle(), space.memory(), stream.handle()),
                        "te_fp8_transpose_dbias");
            } while (space.wasAsked());
        }

        @Override
        public void close() {
            TransformerEngine.te_destroy_tensor(transposed);
        }
    }
}
