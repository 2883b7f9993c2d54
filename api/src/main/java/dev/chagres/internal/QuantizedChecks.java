package dev.chagres.internal;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.QuantizedPart;
import org.jspecify.annotations.Nullable;

/**
 * Checks of quantized tensors as arguments.
 *
 * <p>Threading: the device's thread.
 */
public final class QuantizedChecks {
    private static final int PARTS = 6;

    private QuantizedChecks() {}

    /** Checks that {@code tensor} and its parts may be used on the stream's device. */
    public static QuantizedTensor on(Stream stream, String argument, QuantizedTensor tensor) {
        Checks.given("stream", stream);
        Checks.given(argument, tensor).handle();
        for (int i = 0; i < PARTS; i++) {
            Tensor part = part(tensor, i);
            if (part != null) {
                Checks.on(stream, argument, part);
                return tensor; // The others are of the same device.
            }
        }
        throw new IllegalArgumentException(argument + ": expected data, got " + describe(tensor)
                + " without any part; set rowwise or columnwise data");
    }

    /** Checks that {@code tensor} has one scale for all elements. */
    public static void requireTensorScaling(String argument, QuantizedTensor tensor, String reason) {
        if (tensor.scaling() != Scaling.TENSOR) {
            throw new IllegalArgumentException(
                    argument + ": expected scaling by TENSOR, for " + reason + ", got " + describe(tensor));
        }
    }

    /** Checks that {@code tensor} has both copies. */
    public static void requireBoth(String argument, QuantizedTensor tensor, String reason) {
        requireRowwise(argument, tensor, reason);
        requireColumnwise(argument, tensor, reason);
    }

    /** Returns the rowwise data, which must be there. */
    public static Tensor requireRowwise(String argument, QuantizedTensor tensor, String reason) {
        Tensor data = tensor.rowwise();
        if (data == null) {
            throw new IllegalArgumentException(argument + ": expected rowwise data, for " + reason + ", got "
                    + describe(tensor) + " without; set it by rowwise or allocateRowwise");
        }
        return data;
    }

    /** Returns the columnwise data, which must be there. */
    public static Tensor requireColumnwise(String argument, QuantizedTensor tensor, String reason) {
        Tensor data = tensor.columnwise();
        if (data == null) {
            throw new IllegalArgumentException(argument + ": expected columnwise data, for " + reason + ", got "
                    + describe(tensor) + " without; set it by columnwise or allocateColumnwise");
        }
        return data;
    }

    /** Checks that quantized numbers of {@code rows} by {@code columns} can be written to {@code tensor}. */
    public static void output(Stream stream, String argument, QuantizedTensor tensor, long rows, long columns) {
        on(stream, argument, tensor);
        if (tensor.rows() != rows || tensor.columns() != columns) {
            throw new IllegalArgumentException(
                    argument + ": expected [" + rows + ", " + columns + "], got " + describe(tensor));
        }
        if (tensor.scaling() == Scaling.TENSOR) {
            tensorScaledOutput(argument, tensor);
        } else if (tensor.rowwise() == null && tensor.columnwise() == null) {
            requireRowwise(argument, tensor, "there is no columnwise data either");
        }
        for (int i = 0; i < PARTS; i++) {
            Tensor part = part(tensor, i);
            for (int j = i + 1; part != null && j < PARTS; j++) {
                partsApart(argument, tensor, i, part, j);
            }
            if (part != null) {
                Checks.writable(argument, part);
            }
        }
    }

    private static void tensorScaledOutput(String argument, QuantizedTensor tensor) {
        requireRowwise(argument, tensor, "with TENSOR scaling columnwise data is made beside it");
        if (tensor.scale() == null) {
            throw new IllegalArgumentException(argument + ": expected a scale, by which TENSOR scaling multiplies, got "
                    + describe(tensor) + " without; set it by scale");
        }
        oneScaleInverse(argument, tensor);
    }

    /**
     * Checks that both copies of a tensor with one scale have one scale inverse, since kernels write one.
     *
     * @throws IllegalArgumentException when they have two
     */
    public static void oneScaleInverse(String argument, QuantizedTensor tensor) {
        Tensor rowwise = tensor.rowwiseScaleInverse();
        Tensor columnwise = tensor.columnwiseScaleInverse();
        if (rowwise != null && columnwise != null && rowwise.address() != columnwise.address()) {
            throw new IllegalArgumentException(
                    argument + ": expected one scale inverse for both copies, as TENSOR scaling"
                            + " has one scale, got two; give columnwise the one that rowwise has");
        }
    }

    private static void partsApart(String argument, QuantizedTensor tensor, int i, Tensor part, int j) {
        Tensor other = part(tensor, j);
        boolean shared = i == 4 && j == 5 && tensor.scaling() == Scaling.TENSOR;
        if (other != null && !shared && Checks.overlaps(part, other)) {
            throw new IllegalArgumentException(argument + ": expected parts that share no memory, got "
                    + QuantizedPart.name(i) + " and " + QuantizedPart.name(j) + " that do");
        }
    }

    /** Checks that no part of {@code tensor}, which is written to, shares a byte with {@code other}. */
    public static void apart(String argument, QuantizedTensor tensor, String otherArgument, @Nullable Tensor other) {
        for (int i = 0; other != null && i < PARTS; i++) {
            Tensor part = part(tensor, i);
            if (part != null && Checks.overlaps(part, other)) {
                throw new IllegalArgumentException(
                        argument + ": expected memory of its own, got some of " + otherArgument + "'s in its "
                                + QuantizedPart.name(i) + "; it is written to while that is read or written");
            }
        }
    }

    /** Checks that {@code tensor}, a plain one that is written to, shares no byte with a part of {@code other}. */
    public static void apart(String argument, Tensor tensor, String otherArgument, QuantizedTensor other) {
        for (int i = 0; i < PARTS; i++) {
            Tensor part = part(other, i);
            if (part != null) {
                Checks.apart(argument, tensor, otherArgument, part);
            }
        }
    }

    /** Checks that kernels which make both copies, or blocks, can load what they read and store what they write. */
    public static void aligned(String argument, Tensor input, String outputArgument, QuantizedTensor output) {
        if (output.columnwise() != null || output.scaling() != Scaling.TENSOR) {
            Checks.aligned(argument, input);
            aligned(outputArgument, output.rowwise());
            aligned(outputArgument, output.columnwise());
        }
    }

    public static void aligned(String argument, @Nullable Tensor data) {
        if (data != null) {
            Checks.aligned(argument, data);
        }
    }

    /** Checks that a kernel which reads several rows and columns at once divides the matrix. */
    public static void divisible(String argument, Tensor matrix, long rows) {
        divisible(argument, matrix, rows, 8);
    }

    /** The same of a kernel that reads {@code bytes} of a row at once. */
    public static void divisible(String argument, Tensor matrix, long rows, long bytes) {
        long columns = Math.max(1, bytes / matrix.dtype().byteSize());
        if (matrix.size(0) % rows != 0 || matrix.size(1) % columns != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of " + rows + " rows and of " + columns
                    + " columns, which TE's kernel for both copies of " + matrix.dtype() + " takes at once, got "
                    + Checks.describe(matrix) + "; pad it with zeros");
        }
    }

    private static @Nullable Tensor part(QuantizedTensor tensor, int index) {
        return switch (index) {
            case 0 -> tensor.rowwise();
            case 1 -> tensor.columnwise();
            case 2 -> tensor.scale();
            case 3 -> tensor.amax();
            case 4 -> tensor.rowwiseScaleInverse();
            default -> tensor.columnwiseScaleInverse();
        };
    }

    /** Returns type, shape and scaling for a message. */
    public static String describe(QuantizedTensor tensor) {
        return tensor.dtype() + "[" + tensor.rows() + ", " + tensor.columns() + "] " + tensor.scaling();
    }
}
