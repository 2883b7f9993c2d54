package dev.chagres.parameter;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Parameters that begin with stored numbers, which are opened for each use, and closed. */
@Tag("L0")
class StoredInitializerTest {
    @Test
    void readsEachElement() {
        var open = new AtomicInteger();
        var opened = new AtomicInteger();
        Initializer stored = Initializer.stored(() -> {
            open.incrementAndGet();
            opened.incrementAndGet();
            return new Initializer.Values() {
                @Override
                public float value(long element) {
                    return 0.5f * element;
                }

                @Override
                public void close() {
                    open.decrementAndGet();
                }
            };
        });
        var plan = new ModelPlan();
        Parameter weight = plan.declare("weight", Initializer.ones(), 2, 3);
        weight.initializeBy(stored);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1)) {
            assertArrayEquals(
                    new float[] {0, 0.5f, 1, 1.5f, 2, 2.5f},
                    parameters.get("weight").weight().toFloats(device.stream()));
            assertEquals(
                    "parameter weight has memory already: set its initializer before Parameters.allocate, which writes"
                            + " the first weights",
                    assertThrows(IllegalStateException.class, () -> weight.initializeBy(stored))
                            .getMessage());
        }
        assertEquals(1, opened.get());
        assertEquals(3.5f, stored.value(1, 7));
        assertEquals(0, open.get());
    }
}
