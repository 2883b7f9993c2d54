package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import dev.chagres.conformance.OwnThread;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Multiprocessors;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a margin may be, who keeps it, and what norms of Transformer Engine say to another one. */
@Tag("L0")
@Tag("L1")
class MultiprocessorMarginTest {
    @Test
    void refusesLessThanNothing() {
        assertThrown(
                IllegalArgumentException.class,
                "norms: expected a margin of at least 0 multiprocessors, got -1",
                () -> new MultiprocessorMargin(-1, 0));
        assertThrown(
                IllegalArgumentException.class,
                "products: expected a margin of at least 0 multiprocessors, got -2147483648",
                () -> MultiprocessorMargin.NONE.withProducts(Integer.MIN_VALUE));
    }

    @Test
    void saysWhatItIs() {
        MultiprocessorMargin margin = MultiprocessorMargin.NONE.withNorms(16).withProducts(3);
        assertEquals(new MultiprocessorMargin(16, 3), margin);
        assertEquals("MultiprocessorMargin[norms=16, products=3]", margin.toString());
    }

    @Test
    void deviceKeepsIt() {
        try (Device device = Device.open()) {
            assertSame(MultiprocessorMargin.NONE, device.multiprocessorMargin());
            Multiprocessors multiprocessors = Inside.state(device).multiprocessors();
            assertEquals(0, multiprocessors.ofNorms());
            assertEquals(0, multiprocessors.ofProducts());
            int most = device.multiprocessorCount() - 1;
            for (int margin = 0; margin <= most; margin++) {
                int products = Math.max(0, most - 1 - margin);
                MultiprocessorMargin given = new MultiprocessorMargin(margin, products);
                device.multiprocessorMargin(given);
                assertSame(given, device.multiprocessorMargin());
                assertEquals(margin == 0 ? 0 : most + 1 - margin, multiprocessors.ofNorms());
                assertEquals(products == 0 ? 0 : most + 1 - products, multiprocessors.ofProducts());
            }
            device.multiprocessorMargin(MultiprocessorMargin.NONE);
            assertEquals(0, multiprocessors.ofNorms());
            assertEquals(0, multiprocessors.ofProducts());
        }
    }

    @Test
    void refusesWhatLeavesNone() {
        try (Device device = Device.open()) {
            int count = device.multiprocessorCount();
            MultiprocessorMargin before = device.multiprocessorMargin();
            for (int margin : new int[] {count, count + 1, Integer.MAX_VALUE}) {
                String expected = ", for device 0 has " + count + " multiprocessors, got " + margin;
                assertThrown(
                        IllegalArgumentException.class,
                        "norms: expected a margin from 0 to " + (count - 1) + expected,
                        () -> device.multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin)));
                assertThrown(
                        IllegalArgumentException.class,
                        "products: expected a margin from 0 to " + (count - 2) + expected,
                        () -> device.multiprocessorMargin(MultiprocessorMargin.NONE.withProducts(margin)));
            }
            assertThrown(
                    IllegalArgumentException.class,
                    "products: expected a margin from 0 to " + (count - 2) + ", for device 0 has " + count
                            + " multiprocessors, got " + (count - 1),
                    () -> device.multiprocessorMargin(MultiprocessorMargin.NONE.withProducts(count - 1)));
            assertThrown(
                    NullPointerException.class,
                    "margin: expected a value, got null",
                    () -> device.multiprocessorMargin(null));
            assertSame(before, device.multiprocessorMargin(), "what is refused changes nothing");
        }
    }

    @Test
    void belongsToTheDevicesThread() {
        String owner = Thread.currentThread().getName();
        Device device = Device.open();
        try {
            OwnThread.run(
                    "another",
                    () -> assertThrown(
                            WrongThreadException.class,
                            "device 0 belongs to thread \"" + owner
                                    + "\", called from \"another\"; Device.detach() there and Device.attach() here move it",
                            () -> device.multiprocessorMargin(MultiprocessorMargin.NONE)));
        } finally {
            device.close();
        }
        assertThrown(
                IllegalStateException.class,
                "device 0 is closed",
                () -> device.multiprocessorMargin(MultiprocessorMargin.NONE));
    }

    /** Transformer Engine would go on with the first number for this shape, in silence. */
    @Test
    void aThreadHasOneMarginForNormsOfTransformerEngine() {
        OwnThread.run("norms", () -> {
            int count;
            try (Device device = Device.open()) {
                count = device.multiprocessorCount();
                norm(device);
                device.multiprocessorMargin(MultiprocessorMargin.NONE.withProducts(count - 2));
                norm(device);
                if (count == 1) {
                    return; // There is no other margin.
                }
                device.multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(1));
                assertThrown(IllegalStateException.class, refusal(0, 1), () -> norm(device));
                device.multiprocessorMargin(MultiprocessorMargin.NONE);
                norm(device);
            }
            try (Device again = Device.open()) {
                again.multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(1));
                assertThrown(IllegalStateException.class, refusal(0, 1), () -> norm(again));
            }
        });
    }

    /** A device that moves takes its margin along; the workspace is asked for anew. */
    @Test
    void anotherThreadMayHaveAnotherMargin() {
        Device[] opened = new Device[1];
        OwnThread.run("first", () -> {
            opened[0] = Device.open();
            norm(opened[0]);
            int margin = opened[0].multiprocessorCount() - 1;
            opened[0].multiprocessorMargin(MultiprocessorMargin.NONE.withNorms(margin));
            opened[0].detach();
        });
        OwnThread.run("second", () -> {
            opened[0].attach();
            norm(opened[0]);
            opened[0].close();
        });
    }

    private static String refusal(int before, int now) {
        return "norms: expected a margin of " + before
                + " multiprocessors, with which thread \"norms\" has computed norms of"
                + " Transformer Engine before, for it keeps the first one of a thread and shape; got " + now
                + " of device 0; set the margin before the thread's first such norm, or use another thread";
    }

    private static void norm(Device device) {
        try (Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 40, 24);
            Tensor gamma = scope.tensor(DType.FLOAT32, 24);
            Tensor rsigma = scope.tensor(DType.FLOAT32, 40);
            Tensor dgamma = scope.tensor(DType.FLOAT32, 24);
            x.zero(device.stream());
            gamma.zero(device.stream());
            Tensor z = scope.tensor(DType.FLOAT32, 40, 24);
            new Normalization(1e-5f, Gamma.PLAIN).gamma(gamma).rmsnormFwd(x, z, rsigma, device.stream());
            Tensor dx = scope.tensor(DType.FLOAT32, 40, 24);
            new Normalization(0, Gamma.PLAIN).gamma(gamma).rmsnormBwd(z, x, rsigma, dx, dgamma, device.stream());
            assertEquals(0, dgamma.toFloats(device.stream())[23]);
        }
    }
}
