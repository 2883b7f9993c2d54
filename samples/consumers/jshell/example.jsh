import dev.chagres.*;
import dev.chagres.ops.Elementwise;
var device = Device.open();
var scope = device.openScope();
var x = scope.tensor(DType.FLOAT32, 3);
var y = scope.like(x);
x.set(device.stream(), 1f, 2f, 3f);
Elementwise.add(x, x, y, device.stream());
System.out.println(Arrays.toString(y.toFloats(device.stream())));
scope.close();
device.close();
/exit
