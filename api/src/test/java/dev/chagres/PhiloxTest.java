package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The state of random numbers, and dropout's description. */
@Tag("L0")
@Tag("L1")
class PhiloxTest {
    @Test
    void handsOutSeedAndOffset() {
        try (Device device = Device.open();
                Scope scope = device.openScope();
                HostBuffer host = HostBuffer.pinned(device, 16)) {
            Philox generator = new Philox(-5);
            assertEquals(-5, generator.seed());
            for (long[] step : new long[][] {{0, 7}, {7, 100}, {107, 1L << 40}, {107 + (1L << 40), 1}}) {
                assertEquals(step[0], generator.offset());
                Tensor state = generator.next(scope, step[1]);
                assertEquals(DType.INT64, state.dtype());
                assertEquals(Shape.of(2), state.shape());
                state.copyTo(device.stream(), host);
                device.synchronize();
                assertEquals(-5, host.segment().getAtIndex(ValueLayout.JAVA_LONG, 0));
                assertEquals(step[0], host.segment().getAtIndex(ValueLayout.JAVA_LONG, 1));
            }
            generator.seek(3);
            assertEquals(3, generator.offset());
        }
    }

    @Test
    void dropoutSaysWhatItDrops() {
        Philox generator = new Philox(1);
        assertSame(Dropout.none(), Dropout.of(0, generator));
        assertEquals(0.25f, Dropout.of(0.25f, generator).probability());
        for (float probability : new float[] {-0.1f, 1, 2, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "probability: expected 0 <= probability < 1, got " + probability,
                    () -> Dropout.of(probability, generator));
        }
        assertThrown(
                IllegalArgumentException.class,
                "generator: expected one exactly when probability is positive, which is 0.5",
                () -> new Dropout(0.5f, null));
        assertThrown(
                IllegalArgumentException.class,
                "generator: expected one exactly when probability is positive, which is 0.0",
                () -> new Dropout(0, generator));
    }
}
