package example;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

class ExampleTest {
    @Test
    void addsATensorToItself() {
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 3);
            Tensor y = scope.like(x);
            x.set(device.stream(), 1f, 2f, 3f);
            Elementwise.add(x, x, y, device.stream());
            float[] doubled = y.toFloats(device.stream());
            assertArrayEquals(new float[] {2, 4, 6}, doubled);
            System.out.println(Arrays.toString(doubled));
        }
    }
}
