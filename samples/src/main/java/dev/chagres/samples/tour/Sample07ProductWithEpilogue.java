package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import java.util.Arrays;

/** Calls Transformer Engine's product without a layer: {@code y = gelu(x W^T + b)}, bias and GELU in its epilogue. */
final class Sample07ProductWithEpilogue {
    private static final int ROWS = 32;
    private static final int INNER = 64;
    private static final int COLUMNS = 128;

    private Sample07ProductWithEpilogue() {}

    static void run() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor x = filled(device, scope, 0.5f, ROWS, INNER);
            Tensor w = filled(device, scope, 0.0625f, COLUMNS, INNER);
            Tensor b = scope.tensor(DType.BFLOAT16, COLUMNS);
            b.set(device.stream(), new float[COLUMNS]);
            Tensor before = scope.tensor(DType.BFLOAT16, ROWS, COLUMNS);
            Tensor y = scope.like(before);

            Gemm.gemmBiasGelu(x, Transpose.NO, w, Transpose.YES, b, before, y, device.stream());

            // Each product is 64 x 0.5 x 0.0625 = 2, and gelu(2) = 1.9546.
            double product = Tour.near("x W^T", 2, before.toFloats(device.stream())[0], 1e-2);
            double gelu = Tour.near("gelu(2)", 1.9546, y.toFloats(device.stream())[0], 1e-2);
            System.out.printf("7 epilogue: x W^T = %.3f, gelu of it %.3f, in one call%n", product, gelu);
        }
    }

    private static Tensor filled(Device device, Scope scope, float value, int rows, int columns) {
        float[] values = new float[rows * columns];
        Arrays.fill(values, value);
        Tensor tensor = scope.tensor(DType.BFLOAT16, rows, columns);
        tensor.set(device.stream(), values);
        return tensor;
    }
}
