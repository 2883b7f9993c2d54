package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of FP8 products: what cuBLASLt on Hopper asks for, named before it is called.
 *
 * <p>Threading: the device's thread.
 */
public final class QuantizedProductChecks {
    /** Rows of operands and results are multiples of this many bytes, which tensor cores load at once. */
    private static final long ROW_BYTES = 16;

    /** With block scaling cuBLASLt requires multiples of this for M or N. */
    private static final long BLOCK_MULTIPLE = 8;

    private QuantizedProductChecks() {}

    /** Checks what all products have in common, and returns K. */
    public static long product(
            QuantizedTensor a,
            boolean transA,
            QuantizedTensor b,
            boolean transB,
            Tensor d,
            boolean split,
            Stream stream) {
        QuantizedChecks.on(stream, "a", a);
        QuantizedChecks.on(stream, "b", b);
        ProductChecks.countable("d", Checks.matrix(stream, "d", d));
        boolean plainA = !transA;
        boolean plainB = !transB;
        Tensor readA = plainA
                ? QuantizedChecks.requireRowwise("a", a, "op(a) takes it as it is")
                : QuantizedChecks.requireColumnwise("a", a, "op(a) takes its transpose");
        Tensor readB = plainB
                ? QuantizedChecks.requireColumnwise("b", b, "op(b) takes it as it is")
                : QuantizedChecks.requireRowwise("b", b, "op(b) takes its transpose");
        // Either copy has rows of K numbers.
        long inner = readA.size(1);
        if (readB.size(1) != inner) {
            String shape = plainB ? "[" + inner + ", N]" : "[N, " + inner + "], transposed";
            throw new IllegalArgumentException("b: expected " + shape + ", for a is " + QuantizedChecks.describe(a)
                    + (plainA ? "" : ", transposed") + ", got " + QuantizedChecks.describe(b));
        }
        if (d.size(0) != readA.size(0) || d.size(1) != readB.size(0)) {
            throw new IllegalArgumentException(
                    "d: expected [" + readA.size(0) + ", " + readB.size(0) + "], got " + Checks.describe(d));
        }
        operand("a", a, readA);
        operand("b", b, readB);
        together(a, b, split);
        multiples(a, readA, b, d);
        Checks.writable("d", d);
        Checks.aligned("d", d);
        QuantizedChecks.apart("d", d, "a", a);
        QuantizedChecks.apart("d", d, "b", b);
        return inner;
    }

    /** Checks a product whose result is quantized, and that its operands have something to sum over. */
    public static void quantized(
            QuantizedTensor a,
            boolean transA,
            QuantizedTensor b,
            boolean transB,
            @Nullable Tensor bias,
            QuantizedTensor d,
            Stream stream) {
        QuantizedChecks.on(stream, "a", a);
        QuantizedChecks.on(stream, "b", b);
        QuantizedChecks.requireTensorScaling("a", a, "the result has one scale");
        QuantizedChecks.requireTensorScaling("b", b, "the result has one scale");
        Tensor readA = transA
                ? QuantizedChecks.requireColumnwise("a", a, "op(a) takes its transpose")
                : QuantizedChecks.requireRowwise("a", a, "op(a) takes it as it is");
        Tensor readB = transB
                ? QuantizedChecks.requireRowwise("b", b, "op(b) takes its transpose")
                : QuantizedChecks.requireColumnwise("b", b, "op(b) takes it as it is");
        long inner = readA.size(1);
        if (readB.size(1) != inner || inner == 0) {
            throw new IllegalArgumentException("b: expected to be summed over " + inner + " numbers as a is, and over"
                    + " some, for a is " + QuantizedChecks.describe(a) + ", got " + QuantizedChecks.describe(b));
        }
        QuantizedChecks.output(stream, "d", d, readA.size(0), readB.size(0));
        QuantizedChecks.requireTensorScaling("d", d, "cuBLASLt scales no blocks of a result");
        operand("a", a, readA);
        operand("b", b, readB);
        together(a, b, true);
        quantizedResult(a, b, d);
        QuantizedChecks.apart("d", d, "a", readA);
        QuantizedChecks.apart("d", d, "b", readB);
        if (bias != null) {
            Checks.floats(stream, "bias", bias);
            DType dtype = bias.dtype() == DType.FLOAT16 ? DType.FLOAT16 : DType.BFLOAT16;
            Checks.vector(stream, "bias", bias, dtype, d.columns());
            Checks.aligned("bias", bias);
            QuantizedChecks.apart("d", d, "bias", bias);
        }
    }

    private static void quantizedResult(QuantizedTensor a, QuantizedTensor b, QuantizedTensor d) {
        if (d.columnwise() != null) {
            throw new IllegalArgumentException("d: expected only rowwise data, for a product writes no transpose, got "
                    + QuantizedChecks.describe(d) + "; make one by Transpose.transpose");
        }
        boolean hasE5m2 = a.dtype() == DType.FLOAT8_E5M2 || b.dtype() == DType.FLOAT8_E5M2;
        if (d.dtype() == DType.FLOAT8_E5M2 && !hasE5m2) {
            throw new IllegalArgumentException("d: expected FLOAT8_E4M3, for cuBLASLt has no FLOAT8_E5M2 product of two"
                    + " FLOAT8_E4M3, got " + QuantizedChecks.describe(d));
        }
        if (d.columns() % ROW_BYTES != 0) {
            throw new IllegalArgumentException(
                    "d: expected a multiple of 16 columns, which products store at once, got "
                            + QuantizedChecks.describe(d) + "; pad b and d to " + padded(d.columns(), ROW_BYTES));
        }
    }

    private static void operand(String argument, QuantizedTensor tensor, Tensor read) {
        ProductChecks.countable(argument, read);
        Checks.aligned(argument, read);
        if (read.size(1) % ROW_BYTES != 0) {
            throw new IllegalArgumentException(argument + ": expected a multiple of 16 numbers to sum over, which FP8"
                    + " products load at once, got " + QuantizedChecks.describe(tensor) + " of which " + read.size(1)
                    + " are summed over; pad with zeros to " + padded(read.size(1), ROW_BYTES));
        }
    }

    private static void together(QuantizedTensor a, QuantizedTensor b, boolean split) {
        if (a.dtype() == DType.FLOAT8_E5M2 && b.dtype() == DType.FLOAT8_E5M2) {
            throw new IllegalArgumentException(
                    "b: expected FLOAT8_E4M3, for a is FLOAT8_E5M2 and cuBLASLt has no product of two, got "
                            + QuantizedChecks.describe(b));
        }
        boolean blocks = a.scaling() != Scaling.TENSOR;
        if (blocks != (b.scaling() != Scaling.TENSOR)) {
            throw new IllegalArgumentException("b: expected scaling by " + (blocks ? "BLOCK_1D or BLOCK_2D" : "TENSOR")
                    + ", for a is scaled by " + a.scaling() + ", got " + QuantizedChecks.describe(b));
        }
        if (a.scaling() == Scaling.BLOCK_2D && b.scaling() == Scaling.BLOCK_2D) {
            throw new IllegalArgumentException(
                    "b: expected scaling by BLOCK_1D, for a is scaled by BLOCK_2D and cuBLASLt has"
                            + " no product of two, got " + QuantizedChecks.describe(b));
        }
        if (blocks && !split) {
            throw new IllegalArgumentException(
                    "accumulator: expected SPLIT, for products of blocks apply a scale each 128 numbers, got FAST");
        }
    }

    private static void multiples(QuantizedTensor a, Tensor readA, QuantizedTensor b, Tensor d) {
        boolean blocks = b.scaling() != Scaling.TENSOR;
        long columns = blocks ? BLOCK_MULTIPLE : ROW_BYTES / d.dtype().byteSize();
        if (d.size(1) % columns != 0) {
            throw new IllegalArgumentException("d: expected a multiple of " + columns + " columns, which "
                    + (blocks ? "products of blocks" : "FP8 products of " + d.dtype()) + " store at once, got "
                    + Checks.describe(d) + "; pad b and d to " + padded(d.size(1), columns));
        }
        if (a.scaling() == Scaling.BLOCK_1D && readA.size(0) % BLOCK_MULTIPLE != 0) {
            throw new IllegalArgumentException("d: expected a multiple of 8 rows, for a is scaled by BLOCK_1D, got "
                    + Checks.describe(d) + "; pad a and d to " + padded(d.size(0), BLOCK_MULTIPLE));
        }
    }

    private static long padded(long size, long multiple) {
        return (size + multiple - 1) / multiple * multiple;
    }

    /** Checks a bias that is added to each row of {@code d}. */
    public static void bias(Tensor bias, Tensor d, Stream stream) {
        DType dtype = d.dtype() == DType.FLOAT32 ? DType.BFLOAT16 : d.dtype();
        Checks.vector(stream, "bias", bias, dtype, d.size(1));
        Checks.aligned("bias", bias);
        Checks.apart("d", d, "bias", bias);
    }

    /** Refuses K = 0, unless {@code d} has no elements. */
    public static void requireSum(long inner, QuantizedTensor a, Tensor d) {
        if (inner == 0 && d.count() != 0) {
            throw new IllegalArgumentException(
                    "a: expected K of at least 1, for a product with a bias, got " + QuantizedChecks.describe(a));
        }
    }
}
