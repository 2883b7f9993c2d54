package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.bindings.CudaException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What a scope hands out, how scopes nest, and how they close. {@link RestartTest} has repetitions. */
@Tag("L0")
@Tag("L1")
class ScopeTest {
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
    void handsOutTensorsOfEveryRank() {
        assertEquals(Shape.of(), scope.tensor(DType.FLOAT32).shape());
        assertEquals(Shape.of(3), scope.tensor(DType.BYTE, 3).shape());
        assertEquals(Shape.of(3, 0), scope.tensor(DType.INT32, 3, 0).shape());
        assertEquals(Shape.of(3, 5, 7), scope.tensor(DType.FLOAT16, 3, 5, 7).shape());
        Tensor tensor = scope.tensor(DType.BFLOAT16, 3, 5, 7, 2);
        assertEquals(Shape.of(3, 5, 7, 2), tensor.shape());
        assertEquals(4, tensor.rank());
        assertEquals(210, tensor.count());
        assertEquals(420, tensor.byteSize());
        assertEquals("Tensor BFLOAT16[3, 5, 7, 2]", tensor.toString());
        assertEquals(tensor.shape(), scope.like(tensor).shape());
        assertEquals(tensor.dtype(), scope.like(tensor).dtype());
    }

    @Test
    void everyAddressIsAlignedAndItsOwn() {
        long before = 0;
        for (int bytes : new int[] {1, 0, 255, 256, 257, 1, 100_000}) {
            long address = scope.tensor(DType.BYTE, bytes).pointer().address();
            assertEquals(0, address % 256);
            assertNotEquals(before, address);
            before = address;
        }
    }

    @Test
    void aNestedScopeGivesItsMemoryBack() {
        Tensor kept = scope.tensor(DType.FLOAT32, 4);
        kept.set(device.stream(), 1f, 2, 3, 4);
        Tensor scratch;
        long address;
        try (Scope nested = scope.open()) {
            scratch = nested.tensor(DType.FLOAT32, 4);
            address = scratch.pointer().address();
            scratch.set(device.stream(), 5f, 6, 7, 8);
            assertArrayEquals(new float[] {1, 2, 3, 4}, kept.toFloats(device.stream()), "the parent's tensors live on");
        }
        assertFalse(scratch.isLive());
        assertThrown(
                IllegalStateException.class,
                "tensor FLOAT32[4] of nested scope of device 0 is closed: so is its scope",
                scratch::pointer);
        assertEquals(address, scope.tensor(DType.FLOAT32, 4).pointer().address());
        assertArrayEquals(new float[] {1, 2, 3, 4}, kept.toFloats(device.stream()));
    }

    @Test
    void handsOutNothingWhileANestedScopeIsOpen() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 4);
        Scope nested = scope.open();
        Executable[] calls = {
            () -> scope.tensor(DType.FLOAT32, 1),
            () -> scope.like(tensor),
            () -> scope.view(tensor, 0, 1),
            () -> scope.reinterpret(tensor, DType.BYTE, 0, 1),
            () -> scope.like(tensor, DType.INT32),
            scope::open,
            scope::restart
        };
        for (Executable call : calls) {
            assertThrown(
                    IllegalStateException.class,
                    "scope of device 0 has an open nested scope, which must be closed first",
                    call);
        }
        Scope inner = nested.open();
        assertThrown(
                IllegalStateException.class,
                "nested scope of device 0 has an open nested scope, which must be closed first",
                () -> nested.tensor(DType.FLOAT32, 1));
        inner.close();
        nested.close();
        assertTrue(scope.tensor(DType.FLOAT32, 1).isLive());
    }

    @Test
    void closingAnOuterScopeClosesTheInnerOnes() {
        Scope nested = scope.open();
        Scope inner = nested.open();
        Tensor tensor = inner.tensor(DType.FLOAT32, 4);
        nested.close();
        assertFalse(tensor.isLive());
        assertThrown(
                IllegalStateException.class,
                "nested scope of device 0 is closed",
                () -> inner.tensor(DType.FLOAT32, 1));
        inner.close();
        assertTrue(scope.tensor(DType.FLOAT32, 1).isLive(), "the late close of the inner scope does nothing");
    }

    @Test
    void refusesWorkOnceClosed() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 4);
        scope.close();
        scope.close();
        Executable[] calls = {
            () -> scope.tensor(DType.FLOAT32, 1),
            () -> scope.like(tensor),
            () -> scope.view(tensor, 0, 1),
            () -> scope.reinterpret(tensor, DType.BYTE, 0, 1),
            () -> scope.like(tensor, DType.INT32),
            scope::open,
            scope::restart
        };
        for (Executable call : calls) {
            assertThrown(IllegalStateException.class, "scope of device 0 is closed", call);
        }
        assertThrown(
                IllegalStateException.class,
                "tensor FLOAT32[4] of scope of device 0 is closed: so is its scope",
                () -> tensor.toFloats(device.stream()));
    }

    @Test
    void viewsShareMemory() {
        Tensor tensor = scope.tensor(DType.BFLOAT16, 3, 4);
        tensor.set(device.stream(), 0f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
        Tensor middle = scope.view(tensor, 4, 2, 2);
        assertArrayEquals(new float[] {4, 5, 6, 7}, middle.toFloats(device.stream()));
        middle.zero(device.stream());
        assertArrayEquals(new float[] {0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11}, tensor.toFloats(device.stream()));
        assertEquals(Shape.of(12), scope.view(tensor, 0, 12).shape());
        assertEquals(Shape.of(1, 1, 2), scope.view(tensor, 10, 1, 1, 2).shape());
        assertEquals(Shape.of(1, 2, 2, 3), scope.view(tensor, 0, 1, 2, 2, 3).shape());
        assertEquals(0, scope.view(tensor, 12, 0).count());
    }

    @Test
    void viewsStayWithinTheirTensor() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 3, 4);
        assertThrown(
                IllegalArgumentException.class,
                "offset: expected elements within Tensor FLOAT32[3, 4], got 4 from 9 on",
                () -> scope.view(tensor, 9, 4));
        assertThrown(
                IllegalArgumentException.class,
                "offset: expected elements within Tensor FLOAT32[3, 4], got 4 from -1 on",
                () -> scope.view(tensor, -1, 2, 2));
        assertThrown(
                IllegalArgumentException.class,
                "offset: expected elements within Tensor FLOAT32[3, 4], got 13 from 0 on",
                () -> scope.view(tensor, 0, 13));
        assertThrown(
                IllegalArgumentException.class,
                "offset: expected elements within Tensor FLOAT32[3, 4], got 1 from 9223372036854775807 on",
                () -> scope.view(tensor, Long.MAX_VALUE, 1));
        assertThrown(
                IllegalArgumentException.class,
                "shape: expected no negative size, got [-1]",
                () -> scope.view(tensor, 0, -1));
    }

    @Test
    void aViewEndsWithItsTensor() {
        Scope other = device.openScope();
        Tensor tensor = other.tensor(DType.FLOAT32, 4);
        Tensor view = scope.view(tensor, 1, 2);
        Tensor viewOfView = scope.view(view, 1, 1);
        tensor.set(device.stream(), 1f, 2, 3, 4);
        assertArrayEquals(new float[] {3}, viewOfView.toFloats(device.stream()));
        other.restart();
        assertThrown(
                IllegalStateException.class,
                "tensor FLOAT32[2] of scope of device 0 is closed: so is the tensor that it is a view of",
                view::pointer);
        other.tensor(DType.FLOAT32, 4);
        assertFalse(view.isLive(), "handed out again, the tensor is another one");
        other.close();
        assertFalse(viewOfView.isLive());
    }

    @Test
    void aViewIsOfTheSameDevice() {
        assumeTrue(Device.count() >= 2, "skipped: this machine has one device");
        try (Device second = Device.open(1);
                Scope there = second.openScope()) {
            Tensor tensor = there.tensor(DType.FLOAT32, 4);
            assertThrown(
                    IllegalArgumentException.class,
                    "tensor: expected a tensor of device 0, got FLOAT32[4] of device 1",
                    () -> scope.view(tensor, 0, 4));
        }
    }

    @Test
    void refusesImpossibleShapes() {
        assertThrown(
                IllegalArgumentException.class,
                "shape: expected no negative size, got [3, -1]",
                () -> scope.tensor(DType.FLOAT32, 3, -1));
        String tooLarge = "shape: expected at most 9223372036854775807 bytes, got FLOAT32";
        assertThrown(
                IllegalArgumentException.class,
                tooLarge + "[4294967296, 4294967296]",
                () -> scope.tensor(DType.FLOAT32, 1L << 32, 1L << 32));
        assertThrown(
                IllegalArgumentException.class,
                tooLarge + "[2305843009213693952]",
                () -> scope.tensor(DType.FLOAT32, 1L << 61));
        assertTrue(scope.tensor(DType.FLOAT32, 1).isLive());
    }

    @Test
    void tellsWhenMemoryIsOut() {
        for (long bytes : new long[] {1L << 50, Long.MAX_VALUE, Long.MAX_VALUE - 255, Long.MAX_VALUE - 256}) {
            CudaException thrown = assertThrows(CudaException.class, () -> scope.tensor(DType.BYTE, bytes), "" + bytes);
            assertEquals("cudaErrorMemoryAllocation", thrown.codeName());
            assertTrue(
                    thrown.getMessage()
                            .matches("CUDA runtime: cudaMalloc returned cudaErrorMemoryAllocation \\(2\\) on device 0: "
                                    + "out of .*memory.*; \\d+ bytes were asked for, \\d+ are held already"),
                    thrown.getMessage());
        }
        Tensor small = scope.tensor(DType.BYTE, 1);
        small.zero(device.stream());
        CudaException full = assertThrows(CudaException.class, () -> scope.tensor(DType.BYTE, 1L << 50));
        assertTrue(
                full.getMessage()
                        .endsWith(
                                ", 1048576 are held already: other 1.0 MiB; close scopes and streams that are not needed"),
                full.getMessage());
        scope.restart();
        Tensor again = scope.tensor(DType.BYTE, 2);
        again.zero(device.stream());
        device.synchronize();
        assertTrue(again.isLive(), "what could not be had is not asked for again");
    }

    /** The largest holder decides what the error advises. */
    @Test
    void tellsWhatWouldHelpWhereMemoryIsOut() {
        for (MemoryUse.Holder holder : MemoryUse.Holder.values()) {
            try (Scope one = device.openScope().countedAs(holder)) {
                one.tensor(DType.BYTE, 64 << 20);
                String text = String.valueOf(assertThrows(CudaException.class, () -> one.tensor(DType.BYTE, 1L << 50))
                        .getMessage());
                assertTrue(text.contains(" are held already: " + holder + " 64.0 MiB"), text);
                String help = switch (holder) {
                    case OPTIMIZER ->
                        "; an optimizer with states of eight bits, state in the host's memory (AdamW.Config.offloaded), or state"
                                + " that ranks shard (ZeroStage.ONE) takes less";
                    case ACTIVATIONS, TEMPORARY, RECOMPUTATION ->
                        "; smaller micro-batches, or layers that are recomputed, take less";
                    case GRADIENTS ->
                        "; gradients of products in 16 bits (ModelPlan.productGradients), or that ranks shard (ZeroStage.TWO),"
                                + " take less";
                    default -> "; ";
                };
                assertTrue(text.contains(help), text);
            }
        }
    }

    @Test
    void countsBytes() {
        assertEquals(0, scope.reservedBytes());
        scope.tensor(DType.BYTE, 1000);
        assertEquals(1024, scope.peakBytes());
        assertTrue(scope.reservedBytes() >= 1024, "reserved " + scope.reservedBytes());
        try (Scope nested = scope.open()) {
            nested.tensor(DType.BYTE, 5L << 20);
            assertEquals((5L << 20) + 1024, nested.peakBytes());
        }
        scope.tensor(DType.BYTE, 1);
        assertEquals((5L << 20) + 1024, scope.peakBytes());
        assertTrue(scope.reservedBytes() >= (5L << 20) + 1024, "reserved " + scope.reservedBytes());
        assertTrue(scope.reservedBytes() <= 64L << 20, "reserved " + scope.reservedBytes());
    }
}
