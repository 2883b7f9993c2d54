package example

import dev.chagres.DType
import dev.chagres.Device
import dev.chagres.ops.Elementwise
import scala.util.Using

/** Adds a tensor to itself. */
@main def example(): Unit =
  Using.resource(Device.open()) { device =>
    Using.resource(device.openScope()) { scope =>
      val x = scope.tensor(DType.FLOAT32, 3)
      val y = scope.like(x)
      x.set(device.stream(), 1f, 2f, 3f)
      Elementwise.add(x, x, y, device.stream())
      println(y.toFloats(device.stream()).mkString("[", ", ", "]"))
    }
  }
