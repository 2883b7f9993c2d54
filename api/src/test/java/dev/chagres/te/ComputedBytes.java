package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.NativeException;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TensorBytes;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.Rounding;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.jspecify.annotations.Nullable;

/**
 * What this process's provider computes by every FP8 function that runs on Hopper, from numbers that follow from the name of the
 * function alone. Two providers cannot share a process, so one writes its bytes to a {@link BytesFile} and the other compares.
 */
final class ComputedBytes {
    private static final int ROWS = 48;
    private static final int COLUMNS = 80;

    /** Types of input and output, and a shape that every function takes. */
    record Case(DType input, DType output, int rows, int columns) {
        @Override
        public String toString() {
            return input + "-" + output + "-" + rows + "x" + columns;
        }
    }

    static final Case[] CASES = {
        new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, ROWS, COLUMNS),
        new Case(DType.FLOAT32, DType.FLOAT8_E5M2, ROWS, COLUMNS),
        new Case(DType.FLOAT16, DType.FLOAT8_E4M3, 40, 104)
    };

    /** For functions that take any number of rows. */
    static final Case ODD = new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, 129, 272);

    /** One tensor that a function wrote. */
    record Part(String function, ByteRule rule, DType dtype, byte[] bytes) {}

    private final OpenDevice open;
    private final Map<String, Part> parts = new LinkedHashMap<>();
    private final Map<String, String> failures = new LinkedHashMap<>();
    private final CRC32 inputs = new CRC32();
    private String function = "";
    private Object example = "";

    private ComputedBytes(OpenDevice open) {
        this.open = open;
    }

    /** Calls every function. */
    static ComputedBytes compute(OpenDevice open) {
        ComputedBytes computed = new ComputedBytes(open);
        BytesOfCasts.compute(computed);
        BytesOfBiasGradients.compute(computed);
        BytesOfCopies.compute(computed);
        BytesOfActivations.compute(computed);
        BytesOfNorms.compute(computed);
        BytesOfScales.compute(computed);
        BytesOfProducts.compute(computed);
        return computed;
    }

    /** Returns the tensors by name: function, case, part. */
    Map<String, Part> parts() {
        return Collections.unmodifiableMap(parts);
    }

    /** Returns the functions that a library refused, and its texts. */
    Map<String, String> failures() {
        return Collections.unmodifiableMap(failures);
    }

    OpenDevice open() {
        return open;
    }

    /** Calls a function in a scope of its own. What is refused on the device is noted, so that the others are still compared. */
    void call(String name, Object of, Runnable body) {
        function = name;
        example = of;
        open.begin((name + of).hashCode());
        inputs.reset();
        try {
            body.run();
            open.stream().synchronize();
            keep(
                    "checksum of inputs",
                    ByteRule.EXACT,
                    DType.INT64,
                    ByteBuffer.allocate(Long.BYTES).putLong(inputs.getValue()).array());
        } catch (NativeException refused) {
            failures.put(name, of + ": " + refused.getMessage());
        } finally {
            open.end();
        }
    }

    /** Keeps the bytes of a tensor. */
    void keep(String part, ByteRule rule, @Nullable Tensor tensor) {
        if (tensor != null) {
            keep(part, rule, tensor.dtype(), TensorBytes.read(tensor, open.stream()));
        }
    }

    private void keep(String part, ByteRule rule, DType dtype, byte[] bytes) {
        String name = function + "/" + example + "/" + part;
        if (parts.put(name, new Part(function, rule, dtype, bytes)) != null) {
            throw new IllegalStateException(name + " comes twice");
        }
    }

    /** Keeps all that was written of a quantized tensor. */
    void keep(String part, ByteRule data, ByteRule amax, QuantizedTensor tensor) {
        ByteRule scales = tensor.scaling() == Scaling.TENSOR ? ByteRule.EXACT : data;
        keep(part + ".rowwise", data, tensor.rowwise());
        keep(part + ".columnwise", data, tensor.columnwise());
        keep(part + ".scaleInverse", scales, tensor.rowwiseScaleInverse());
        if (tensor.scaling() != Scaling.TENSOR) {
            keep(part + ".columnwiseScaleInverse", scales, tensor.columnwiseScaleInverse());
        }
        keep(part + ".amax", amax, tensor.amax());
    }

    /** Normal numbers, some of them zeros. */
    Tensor normal(DType dtype, int rows, int columns) {
        double[] values = open.normal(dtype, rows * columns, 1);
        for (int i = 0; i < values.length; i += 37) {
            values[i] = i % 2 == 0 ? 0.0 : -0.0;
        }
        return tensor(dtype, values, rows, columns);
    }

    /** Returns a tensor of drawn numbers, which the checksum of the inputs counts. */
    Tensor tensor(DType dtype, double[] values, long... sizes) {
        ByteBuffer bytes = ByteBuffer.allocate(Double.BYTES * values.length);
        bytes.asDoubleBuffer().put(values);
        inputs.update(bytes);
        return open.tensor(dtype, values, sizes);
    }

    /**
     * Normal numbers among which are zeros of both signs, numbers round the largest and below the least normal one of {@code
     * output} after {@code scale}, infinities and NaN.
     */
    Tensor edged(Case of, float scale) {
        double[] values = open.normal(of.input, of.rows * of.columns, 1);
        double largest = Float8Witness.largest(of.output) / scale;
        double leastNormal = (of.output == DType.FLOAT8_E4M3 ? 0x1p-6 : 0x1p-14) / scale;
        double[] special = {Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, Double.NaN};
        for (int i = 0; i < values.length; i++) {
            double value = switch (i % 16) {
                case 0 -> i % 32 == 0 ? 0.0 : -0.0;
                case 1 -> largest * open.random().nextDouble(0.9, 1.1);
                case 2 -> -largest * open.random().nextDouble(0.9, 1.1);
                case 3, 4 -> leastNormal * open.random().nextDouble(-1, 1);
                default -> values[i];
            };
            values[i] = Rounding.round(i % 331 == 330 ? special[i / 331 % 3] : value, of.input);
        }
        return tensor(of.input, values, of.rows, of.columns);
    }

    /** A result with both copies, and an amax of 0. */
    QuantizedTensor both(DType dtype, int rows, int columns, float scale) {
        return Float8Matrix.empty(open, dtype, rows, columns, scale);
    }

    /** A result with rowwise data, and an amax of 0. */
    QuantizedTensor rowwise(DType dtype, int rows, int columns, float scale) {
        return Float8Matrix.emptyRowwise(open, dtype, rows, columns, scale);
    }
}
