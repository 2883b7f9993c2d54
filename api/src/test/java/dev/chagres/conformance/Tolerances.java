package dev.chagres.conformance;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;

/**
 * The one table of tolerances, by what rounds a result.
 *
 * <p>Half a unit in the last place is at most 2^-24 = 6e-8 of a value in FLOAT32, 2^-11 = 4.9e-4 in FLOAT16, 2^-8 = 3.9e-3
 * in BFLOAT16. No bound of one rounding may be less; the norm of many is about 0.4 of it. On CUDA, products of FLOAT32 run as
 * TF32: each operand is rounded to 11 bits like FLOAT16.
 */
public final class Tolerances {
    private Tolerances() {}

    /**
     * Rounded once when it is stored, computed in FP32 from few operations or from sums of a row: norms, activations,
     * residuals, rotations. FLOAT32 leaves room for sums of a few hundred elements and for exp and tanh of a GPU.
     */
    public static Tolerance rounded(DType dtype) {
        return switch (dtype) {
            case FLOAT32 -> new Tolerance("rounded FLOAT32", 2e-6, 2e-5);
            case FLOAT16 -> new Tolerance("rounded FLOAT16", 5.5e-4, 2e-3);
            default -> new Tolerance("rounded BFLOAT16", 4.2e-3, 1e-2);
        };
    }

    /**
     * One matrix product, summed in FP32 and rounded once. FLOAT32: the order of up to some hundred summands on the
     * reference; two operands of 11 bits on CUDA.
     */
    public static Tolerance product(DType dtype) {
        if (dtype == DType.FLOAT32) {
            return singlePrecisionProduct("product FLOAT32");
        }
        return rounded(dtype).named("product " + dtype);
    }

    /**
     * A gradient of weights that is summed and kept in FP32. Products of 16-bit numbers are exact in FP32, so that only the
     * order of the sum shows; FLOAT32 runs as TF32 on CUDA.
     */
    public static Tolerance weightGradient(DType dtype) {
        return dtype == DType.FLOAT32
                ? singlePrecisionProduct("weight gradient FLOAT32")
                : new Tolerance("weight gradient " + dtype, 1e-5, 1e-4);
    }

    /**
     * A product of FP8 numbers, stored as {@code result}. The reference sums in FP32. Tensor cores of Hopper align the summands of
     * an instruction to the largest and keep about 13 bits below it, so that each sum is off by some 2^-13 of its largest part
     * before it is rounded.
     */
    public static Tolerance float8Product(DType result) {
        Tolerance stored = rounded(result);
        double sum = Provider.current() == Provider.CUDA ? 0x1p-11 : 4e-6;
        return new Tolerance("FP8 product, " + result, stored.frobenius() + sum, stored.element() + 10 * sum);
    }

    private static Tolerance singlePrecisionProduct(String name) {
        return Provider.current() == Provider.CUDA
                ? new Tolerance(name + " (TF32)", 1.5e-3, 1e-2)
                : new Tolerance(name, 1e-5, 1e-4);
    }

    /**
     * Attention: products, softmax, product. With 16 bits, weights and score gradients are rounded between the products,
     * and scores far from 0 carry their rounding through exp. Gradients of query and key are differences of numbers that the
     * rounded output enters: elements may be off by some roundings of those.
     */
    public static Tolerance attention(DType dtype) {
        return switch (dtype) {
            case FLOAT32 -> new Tolerance("attention FLOAT32", 1e-5, 1e-4);
            case FLOAT16 -> new Tolerance("attention FLOAT16", 2e-3, 2e-2);
            default -> new Tolerance("attention BFLOAT16", 1.2e-2, 1.5e-1);
        };
    }

    /**
     * A layer of several products and norms, whose intermediate results are rounded to the type: about ten roundings in a
     * row, each as large as that of the result.
     */
    public static Tolerance layer(DType dtype) {
        if (dtype == DType.FLOAT32) {
            return Provider.current() == Provider.CUDA
                    ? new Tolerance("layer FLOAT32 (TF32)", 5e-3, 5e-2)
                    : new Tolerance("layer FLOAT32", 2e-5, 2e-4);
        }
        return dtype == DType.FLOAT16
                ? new Tolerance("layer FLOAT16", 2.5e-3, 2.5e-2)
                : new Tolerance("layer BFLOAT16", 1.5e-2, 1.5e-1);
    }

    /** {@code count} layers one after another: the errors of their roundings are independent and add up as squares do. */
    public static Tolerance layers(DType dtype, int count) {
        Tolerance one = layer(dtype);
        double growth = Math.sqrt(count);
        return new Tolerance(count + " times " + one.name(), growth * one.frobenius(), growth * one.element());
    }
}
