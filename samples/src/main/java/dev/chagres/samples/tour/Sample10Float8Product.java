package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;

/** Multiplies two BFLOAT16 matrices in FP8 with current scaling, {@code y = x W^T}, and compares with the product in BFLOAT16. */
final class Sample10Float8Product {
    private Sample10Float8Product() {}

    static void run() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Tensor x = waves(scope, stream, 0.37, 64, 128);
            Tensor w = waves(scope, stream, 0.61, 256, 128);
            Tensor exact = scope.tensor(DType.BFLOAT16, 64, 256);
            Gemm.gemm(x, Transpose.NO, w, Transpose.YES, exact, Output.OVERWRITE, stream);

            Tensor y = product(x, w, scope, stream);

            // Each factor is off by up to 6%, either way, so that a sum of 128 products is off by less.
            double error = Tour.near("x W^T", exact.toFloats(stream), y.toFloats(stream), 0.06);
            System.out.printf("10 float8: x W^T off by %.1f%% of the one in BFLOAT16%n", 100 * error);
        }
    }

    // @start region="product"
    /** Computes {@code y = x W^T} in FP8. */
    private static Tensor product(Tensor x, Tensor w, Scope scope, Stream stream) {
        QuantizedTensor x8 = quantized(x, scope, stream);
        QuantizedTensor w8 = quantized(w, scope, stream);
        Tensor y = scope.tensor(DType.BFLOAT16, x.size(0), w.size(0));
        Gemm.gemm(x8, Transpose.NO, w8, Transpose.YES, y, Output.OVERWRITE, Accumulator.FAST, stream);
        return y;
    }

    /** Finds the scale that lets the largest element fill the type, and rounds. */
    private static QuantizedTensor quantized(Tensor plain, Scope scope, Stream stream) {
        QuantizedTensor tensor = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, plain.size(0), plain.size(1))
                .allocateRowwise(scope)
                .scale(scope.tensor(DType.FLOAT32, 1))
                .amax(scope.tensor(DType.FLOAT32, 1));
        RecipeUpdates.computeAmax(plain, tensor, QuantizationConfig.standard(), stream);
        RecipeUpdates.computeScaleFromAmax(tensor, QuantizationConfig.standard(), stream);
        Cast.quantize(plain, tensor, stream);
        return tensor;
    }
    // @end

    private static Tensor waves(Scope scope, Stream stream, double pace, int rows, int columns) {
        float[] values = new float[rows * columns];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(pace * i * (1 + i / columns));
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, rows, columns);
        tensor.set(stream, values);
        return tensor;
    }
}
