package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.trainer.ModelSetup.Precision;
import java.util.Locale;

/**
 * Peak rates of GPUs for dense matrix products, as their data sheets give them.
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
}
