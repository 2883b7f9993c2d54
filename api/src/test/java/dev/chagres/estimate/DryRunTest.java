package dev.chagres.estimate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.layer.Linear;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.ProductPlan;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

/** What devices that count hand out, and what they leave out. */
class DryRunTest {
    private static final long GIB = 1L << 30;

    private static void assumeReference() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
    }

    @Test
    void tellsTheMemoryOfMoreThanAMachineHas() {
        assumeReference();
        // @start region="memory"
        MemoryUse use = DryRun.memory(device -> {
            try (Scope scope = device.openScope().countedAs(MemoryUse.Holder.WEIGHTS)) {
                Tensor x = scope.tensor(DType.BFLOAT16, 1 << 20, 1 << 20); // 2 TiB
                x.zero(scope.stream());
                MatrixProduct.of(Transpose.NO, Transpose.YES, ProductPlan.FIRST)
                        .product(x, x, scope.like(x), Output.OVERWRITE, scope.stream());
            }
        });
        System.out.println(use); // weights 4,194,304.0 MiB, workspaces 32.0 MiB
        // @end
        assertEquals(4096 * GIB, use.of(MemoryUse.Holder.WEIGHTS));
        assertEquals((32L << 20) + 1024, use.of(MemoryUse.Holder.WORKSPACES));
    }

    @Test
    void countsOperationsOfALayer() {
        ModelPlan plan = new ModelPlan();
        Layer layer = new Linear(64, 32, Initializer.normal(0.1f), plan.group("layer"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Pass pass = Pass.training(device)) {
            // @start region="count"
            try (FlopCount count = FlopCount.of(Lengths.of(20, 33, 11), pass)) {
                pass.begin();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 64, 64);
                x.zero(device.stream());
                Tensor y = layer.forward(x, pass);
                layer.backward(y, pass);
                System.out.println(count.table());
            }
            // @end
            assertEquals(0, parameters.step());
            try (FlopCount count = FlopCount.of(Lengths.of(64), pass)) {
                pass.begin();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 64, 64);
                x.zero(device.stream());
                layer.backward(layer.forward(x, pass), pass);
                assertEquals(2.0 * 64 * 64 * 32, count.flops().forward());
                assertEquals(0, count.flops().recomputation());
                assertEquals("layer", count.rows().getFirst().layer());
                count.clear();
                assertEquals(FlopCount.Flops.NONE, count.flops());
            }
        }
    }

    @Test
    void copiesWhatIsSmall() {
        assumeReference();
        int[] read = DryRun.call(() -> {
            try (Device device = Device.open();
                    Scope scope = device.openScope()) {
                Tensor small = scope.tensor(DType.INT32, 3);
                small.set(device.stream(), 1, 2, 3);
                return small.toInts(device.stream());
            }
        });
        assertEquals(2, read[1]);
    }

    @Test
    void countsNothingElse() {
        assumeReference();
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Stream stream = device.stream();
            Tensor one = scope.tensor(DType.FLOAT32, 1, 1);
            one.set(stream, 3f);
            Tensor two = scope.like(one);
            DryRun.memory(counting -> {
                multiply(one, two, stream); // a device that was opened before works
                try (Scope inside = counting.openScope()) {
                    Tensor a = inside.tensor(DType.FLOAT32, 1, 1);
                    a.set(counting.stream(), 3f);
                    Tensor b = inside.like(a);
                    b.zero(counting.stream());
                    multiply(a, b, counting.stream());
                    assertEquals(0, b.toFloats(counting.stream())[0]);
                }
            });
            assertEquals(9, two.toFloats(stream)[0]);
            multiply(two, one, stream);
            assertEquals(81, one.toFloats(stream)[0]);
        }
    }

    private static void multiply(Tensor x, Tensor y, Stream stream) {
        MatrixProduct.of(Transpose.NO, Transpose.NO, ProductPlan.FIRST).product(x, x, y, Output.OVERWRITE, stream);
    }

    @Test
    void endsWithAFailure() {
        assumeReference();
        assertThrows(
                ArithmeticException.class,
                () -> DryRun.memory(_ -> {
                    throw new ArithmeticException();
                }));
        try (Device device = Device.open();
                Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 1, 1);
            x.set(device.stream(), 2f);
            Tensor y = scope.like(x);
            multiply(x, y, device.stream());
            assertEquals(4, y.toFloats(device.stream())[0]);
            assertTrue(
                    device.memoryUse().total() == device.heldBytes(),
                    device.memoryUse().toString());
        }
    }
}
