package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.trainer.ModelSetup.Precision;
import java.util.Locale;
import java.util.SplittableRandom;

/**
 * Peak rates of devices for dense matrix products: as the data sheets of GPUs give them, and as a large product reaches them.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: NVIDIA's data sheets; tensor cores, without sparsity.
 */
final class PeakRate {
    /** A name's part and its BF16 rate in TFLOP/s; the first that fits counts. */
    private record Row(String part, double bf16) {}

    private static final Row[] ROWS = {
        new Row("gb200", 2500),
        new Row("b200", 2250),
        new Row("gh200", 989.4),
        new Row("h200 nvl", 835.5),
        new Row("h200", 989.4),
        new Row("h100 pcie", 756),
        new Row("h100 nvl", 835.5),
        new Row("h100", 989.4),
        new Row("h800", 989.4),
        new Row("h20", 148),
        new Row("a100", 312),
        new Row("a800", 312),
        new Row("a30", 165),
        new Row("l40s", 362),
        new Row("l4", 121)
    };

    /** Rows and columns of the product that is timed on a GPU, and on the CPU. */
    private static final int LARGE = 8192;

    private static final int SMALL = 512;
    /** Pieces in which it is filled, and how often it is timed. */
    private static final int PIECES = 32;

    private static final int TIMED = 10;

    private PeakRate() {}

    /**
     * Returns the floating-point operations a second that a device can do at most.
     *
     * @param device the device's name as CUDA gives it
     * @return NaN when the device is not in the table
     */
    static double flopsPerSecond(String device, Precision precision) {
        String[] words = device.toLowerCase(Locale.ROOT).split("[^a-z0-9]+");
        String name = " " + String.join(" ", words) + " ";
        for (Row row : ROWS) {
            if (name.contains(" " + row.part + " ")) {
                return row.bf16 * 1e12 * toBf16(precision);
            }
        }
        return Double.NaN;
    }

    /** FP32 products run as TF32, at half the BF16 rate on every GPU above; eight-bit ones at twice that rate. */
    private static double toBf16(Precision precision) {
        return precision.recipe() != null ? 2 : precision.dtype() == DType.FLOAT32 ? 0.5 : 1;
    }

    /** Returns the TFLOP/s of a large product of normal numbers, which it times: GPUs multiply zeros faster. */
    static double measuredTeraflops(Device device, DType dtype) {
        int size = device.provider() == Provider.CUDA ? LARGE : SMALL;
        int rows = size / PIECES;
        var random = new SplittableRandom(1);
        float[] numbers = new float[rows * size];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (float) random.nextGaussian();
        }
        Stream stream = device.stream();
        try (Scope scope = device.openScope();
                Event begin = device.openEvent();
                Event end = device.openEvent()) {
            Tensor piece = scope.tensor(dtype, rows, size);
            piece.set(stream, numbers);
            Tensor a = scope.tensor(dtype, size, size);
            for (int i = 0; i < PIECES; i++) {
                scope.view(a, (long) i * rows * size, rows, size).copyFrom(stream, piece);
            }
            Tensor d = scope.like(a);
            var product = MatrixProduct.of(Transpose.NO, Transpose.YES, ProductPlan.MEASURED);
            for (int i = 0; i < 2 * TIMED; i++) {
                if (i == TIMED) {
                    begin.record(stream);
                }
                product.product(a, a, d, Output.OVERWRITE, stream);
            }
            end.record(stream);
            end.synchronize();
            return 2.0 * size * size * size * TIMED / end.millisSince(begin) / 1e9;
        }
    }
}
