package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.conformance.Allocation;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Turns;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Scopes that begin again: closed tensors, objects that come back in turn, and no garbage. */
@Tag("L0")
@Tag("L1")
class RestartTest {
    private Device device;
    private Scope scope;

    @BeforeEach
    void open() {
        device = Device.open();
        scope = device.openScope();
    }

    @AfterEach
    void close() {
        device.close();
    }

    @Test
    void aTensorOfAnEarlierStepStaysClosedForSixSteps() {
        Tensor first = scope.tensor(DType.FLOAT32, 2, 3);
        Tensor second = scope.tensor(DType.INT32, 5);
        Tensor view = scope.view(first, 3, 3);
        long address = second.pointer().address();
        for (int later = 1; later < Turns.COUNT; later++) {
            scope.restart();
            assertClosed("FLOAT32[2, 3]", first);
            Tensor again = scope.tensor(DType.FLOAT32, 2, 3);
            assertNotSame(first, again);
            assertClosed("FLOAT32[2, 3]", first);
            assertEquals(address, scope.tensor(DType.INT32, 5).pointer().address());
            assertClosed("INT32[5]", second);
            Tensor other = scope.view(again, 0, 6);
            assertEquals(again.pointer().address(), other.pointer().address());
            assertClosed("FLOAT32[3]", view);
        }
        scope.restart();
        assertClosed("FLOAT32[2, 3]", first);
        assertSame(first, scope.tensor(DType.FLOAT32, 2, 3), "its turn has come again");
        assertClosed("INT32[5]", second);
        assertSame(second, scope.tensor(DType.INT32, 5));
        assertClosed("FLOAT32[3]", view);
        assertSame(view, scope.view(first, 0, 6));
    }

    private static void assertClosed(String which, Tensor tensor) {
        assertFalse(tensor.isLive());
        assertThrown(
                IllegalStateException.class,
                "tensor " + which + " of scope of device 0 is closed: the scope was restarted since",
                tensor::pointer);
    }

    private void restartUntilTheSameTurn() {
        for (int i = 0; i < Turns.COUNT; i++) {
            scope.restart();
        }
    }

    @Test
    void resizesWhereAShapeChanged() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 2, 3);
        restartUntilTheSameTurn();
        assertSame(tensor, scope.tensor(DType.FLOAT32, 100, 2, 7));
        assertEquals(Shape.of(100, 2, 7), tensor.shape());
        restartUntilTheSameTurn();
        assertSame(tensor, scope.tensor(DType.FLOAT32));
        assertEquals(Shape.of(), tensor.shape());
    }

    /** A process has a limited number of TE's handles. */
    @Test
    void theObjectsOfOnePlaceShareAHandle() {
        long first = scope.tensor(DType.FLOAT32, 2, 3).handle().address();
        for (int i = 0; i < Turns.COUNT; i++) {
            scope.restart();
            Tensor again = scope.tensor(i % 2 == 0 ? DType.BFLOAT16 : DType.FLOAT32, 5, i + 1);
            assertEquals(first, again.handle().address());
            assertEquals(
                    5L * (i + 1),
                    Inside.state(device).basicTensor().readFrom(again.handle()).byteSize()
                            / again.dtype().byteSize());
        }
    }

    @Test
    void addressesRepeatWithTheShapesOnceTheLargestStepHasPassed() {
        int[] sizes = {1000, 10, 3000, 1, 2000};
        long[][] addresses = new long[sizes.length][3];
        for (int repetition = 0; repetition < 20; repetition++) {
            scope.restart();
            long[] before = addresses[repetition % sizes.length];
            for (int i = 0; i < before.length; i++) {
                Tensor tensor = scope.tensor(DType.BYTE, sizes[(repetition + i) % sizes.length]);
                long address = tensor.pointer().address();
                assertTrue(repetition < 2 * sizes.length || address == before[i], "repetition " + repetition);
                before[i] = address;
            }
        }
    }

    @Test
    void anotherCourseGetsTheSameObjectsInTheirOrder() {
        Tensor first = scope.tensor(DType.FLOAT32, 2);
        Tensor second = scope.tensor(DType.FLOAT32, 2);
        Tensor third = scope.view(first, 0, 1);
        restartUntilTheSameTurn();
        assertSame(first, scope.tensor(DType.FLOAT32, 2));
        assertSame(second, scope.tensor(DType.BFLOAT16, 4, 3));
        assertEquals(DType.BFLOAT16, second.dtype());
        assertEquals(Shape.of(4, 3), second.shape());
        assertFalse(third.isLive());
        assertSame(third, scope.tensor(DType.INT64), "a view before, memory of its own now");
        first.zero(device.stream());
        third.set(device.stream(), -1L);
        assertArrayEquals(new float[2], first.toFloats(device.stream()));
        restartUntilTheSameTurn();
        scope.tensor(DType.FLOAT32, 2);
        try (Scope nested = scope.open()) {
            assertTrue(nested.tensor(DType.FLOAT32, 2).isLive());
        }
        assertFalse(second.isLive());
        assertFalse(third.isLive());
        assertSame(second, scope.tensor(DType.FLOAT32, 1), "a nested scope has objects of its own");
    }

    @Test
    void nestedScopesComeBackToo() {
        Scope first = scope.open();
        Tensor inside = first.tensor(DType.FLOAT32, 2);
        first.close();
        for (int later = 1; later < Turns.COUNT; later++) {
            try (Scope again = scope.open()) {
                assertNotSame(first, again);
                assertNotSame(inside, again.tensor(DType.FLOAT32, 2));
                assertClosed(inside);
            }
        }
        try (Scope again = scope.open()) {
            assertSame(first, again, "its turn has come again");
            assertClosed(inside);
            assertSame(inside, again.tensor(DType.FLOAT32, 2));
            again.restart();
            assertClosed(inside);
            assertNotSame(inside, again.tensor(DType.FLOAT32, 3), "a nested scope restarts by itself");
        }
    }

    private static void assertClosed(Tensor inside) {
        assertFalse(inside.isLive());
        assertThrown(
                IllegalStateException.class,
                "tensor FLOAT32[2] of nested scope of device 0 is closed: the scope was restarted since",
                inside::pointer);
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        Allocation.assertNone("a step of tensors, views and nested scopes", () -> {
            scope.restart();
            Tensor x = scope.tensor(DType.FLOAT32, 16, 8);
            for (int layer = 0; layer < 3; layer++) {
                Tensor y = scope.like(x);
                try (Scope nested = scope.open()) {
                    nested.view(nested.tensor(DType.BFLOAT16, 64), 8, 2, 4).zero(device.stream());
                }
                y.copyFrom(device.stream(), x);
                x = y;
            }
        });
        assertEquals(1L << 20, scope.reservedBytes(), "nor does it take device memory");
    }

    /** Random steps against a simple model of a stack: no two live tensors overlap, and contents stay. */
    @Test
    void liveTensorsNeverOverlap() {
        long seed = Long.getLong("chagres.test.seed", System.nanoTime());
        System.out.println("liveTensorsNeverOverlap: replay with -Dchagres.test.seed=" + seed);
        SplittableRandom random = new SplittableRandom(seed);
        for (int repetition = 0; repetition < 20; repetition++) {
            scope.restart();
            fill(scope, random, new ArrayList<>(), 0);
        }
    }

    private void fill(Scope on, SplittableRandom random, List<Tensor> live, int depth) {
        int own = live.size();
        for (int i = 0; i < 8; i++) {
            if (depth < 4 && random.nextInt(4) == 0) {
                try (Scope nested = on.open()) {
                    fill(nested, random, live, depth + 1);
                }
            } else {
                Tensor tensor = on.tensor(DType.FLOAT32, random.nextInt(random.nextInt(10) == 0 ? 700_000 : 300));
                long begin = tensor.pointer().address();
                for (Tensor other : live) {
                    long otherBegin = other.pointer().address();
                    assertTrue(
                            begin + tensor.byteSize() <= otherBegin || otherBegin + other.byteSize() <= begin,
                            () -> tensor + " overlaps " + other);
                }
                live.add(tensor);
            }
        }
        live.subList(own, live.size()).clear();
    }
}
