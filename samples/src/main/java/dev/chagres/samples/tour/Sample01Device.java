package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import java.util.Arrays;

/** Opens a device, copies numbers to it and back. Memory comes from a scope, and goes with it. */
final class Sample01Device {
    private Sample01Device() {}

    static void run() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor tensor = scope.tensor(DType.BFLOAT16, 2, 3);
            tensor.set(device.stream(), 1, 2, 3, 4, 5, 1.001f);
            float[] back = tensor.toFloats(device.stream());

            // BFLOAT16 has 8 significant bits: 1.001 comes back as 1.
            if (!Arrays.equals(back, new float[] {1, 2, 3, 4, 5, 1})) {
                throw new IllegalStateException("got " + Arrays.toString(back));
            }
            System.out.println(
                    "1 device: " + device.name() + " (" + device.provider() + ") returned " + Arrays.toString(back));
        }
    }
}
