package example;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import java.util.Arrays;

/** Adds a tensor to itself. */
public final class Example {
    private Example() {}

    public static void main(String[] arguments) {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 3);
            Tensor y = scope.like(x);
            x.set(device.stream(), 1f, 2f, 3f);
            Elementwise.add(x, x, y, device.stream());
            System.out.println(Arrays.toString(y.toFloats(device.stream())));
        }
    }
}
