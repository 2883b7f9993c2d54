package example

import dev.chagres.DType
import dev.chagres.Device
import dev.chagres.ops.Elementwise

/** Adds a tensor to itself. */
fun main() {
    Device.open().use { device ->
        device.openScope().use { scope ->
            val x = scope.tensor(DType.FLOAT32, 3)
            val y = scope.like(x)
            x.set(device.stream(), 1f, 2f, 3f)
            Elementwise.add(x, x, y, device.stream())
            println(y.toFloats(device.stream()).contentToString())
        }
    }
}
