package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTEBasicTensor;
import dev.chagres.bindings.te.NVTEShape;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.Allocation;
import dev.chagres.internal.memory.Turns;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What a quantized tensor holds, what its handle says, and how its scope hands it out again. */
@Tag("L0")
@Tag("L1")
class QuantizedTensorTest {
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
    void scalingsHaveTheNumbersOfTransformerEngine() {
        assertEquals(TransformerEngine.NVTE_DELAYED_TENSOR_SCALING(), Scaling.TENSOR.code());
        assertEquals(TransformerEngine.NVTE_BLOCK_SCALING_1D(), Scaling.BLOCK_1D.code());
        assertEquals(TransformerEngine.NVTE_BLOCK_SCALING_2D(), Scaling.BLOCK_2D.code());
    }

    @Test
    void scaleInverseShapes() {
        assertEquals(Shape.of(1), Scaling.TENSOR.scaleInverseShape(300, 500));
        assertEquals(Shape.of(4, 300), Scaling.BLOCK_1D.scaleInverseShape(300, 500));
        assertEquals(Shape.of(3, 500), Scaling.BLOCK_1D.scaleInverseShape(500, 300));
        assertEquals(Shape.of(1, 4), Scaling.BLOCK_1D.scaleInverseShape(1, 128));
        assertEquals(Shape.of(2, 8), Scaling.BLOCK_1D.scaleInverseShape(5, 129));
        assertEquals(Shape.of(3, 4), Scaling.BLOCK_2D.scaleInverseShape(300, 500));
        assertEquals(Shape.of(1, 8), Scaling.BLOCK_2D.scaleInverseShape(128, 513));
        assertEquals(Shape.of(0, 0), Scaling.BLOCK_2D.scaleInverseShape(0, 0));
    }

    @Test
    void holdsWhatItIsGiven() {
        QuantizedTensor empty = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E5M2, 16, 32);
        assertEquals("QuantizedTensor FLOAT8_E5M2[16, 32] TENSOR", empty.toString());
        assertEquals(Scaling.TENSOR, empty.scaling());
        assertEquals(DType.FLOAT8_E5M2, empty.dtype());
        assertEquals(16, empty.rows());
        assertEquals(32, empty.columns());
        assertEquals(0, empty.deviceIndex());
        assertTrue(empty.isLive());
        assertNull(empty.rowwise());
        assertNull(empty.rowwiseScaleInverse());
        assertNull(empty.columnwise());
        assertNull(empty.columnwiseScaleInverse());
        assertNull(empty.scale());
        assertNull(empty.amax());

        Tensor data = scope.tensor(DType.FLOAT8_E5M2, 16, 32);
        Tensor transposed = scope.tensor(DType.FLOAT8_E5M2, 32, 16);
        Tensor scaleInverse = scope.tensor(DType.FLOAT32, 1);
        Tensor scale = scope.tensor(DType.FLOAT32, 1);
        Tensor amax = scope.tensor(DType.FLOAT32, 1);
        QuantizedTensor full = empty.rowwise(data, scaleInverse)
                .columnwise(transposed, scaleInverse)
                .scale(scale)
                .amax(amax);
        assertSame(empty, full);
        assertSame(data, full.rowwise());
        assertSame(scaleInverse, full.rowwiseScaleInverse());
        assertSame(transposed, full.columnwise());
        assertSame(scaleInverse, full.columnwiseScaleInverse());
        assertSame(scale, full.scale());
        assertSame(amax, full.amax());
    }

    @Test
    void allocatesBothCopies() {
        QuantizedTensor tensor = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 48)
                .allocateColumnwise(scope)
                .allocateRowwise(scope);
        assertEquals("Tensor FLOAT8_E4M3[16, 48]", String.valueOf(tensor.rowwise()));
        assertEquals("Tensor FLOAT8_E4M3[48, 16]", String.valueOf(tensor.columnwise()));
        assertSame(tensor.rowwiseScaleInverse(), tensor.columnwiseScaleInverse(), "one scale serves both");
        QuantizedTensor blocks = scope.quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 16, 300)
                .allocateRowwise(scope)
                .allocateColumnwise(scope);
        assertEquals("Tensor FLOAT32[3, 16]", String.valueOf(blocks.rowwiseScaleInverse()));
        assertEquals("Tensor FLOAT32[1, 300]", String.valueOf(blocks.columnwiseScaleInverse()));
    }

    /** What TE holds of each parameter: address, type and sizes. */
    private static List<String> described(QuantizedTensor tensor) {
        List<String> records = new ArrayList<>();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment record = NVTEBasicTensor.allocate(arena);
            MemorySegment written = arena.allocate(ValueLayout.JAVA_LONG);
            for (int parameter = 0; parameter < 6; parameter++) {
                Status.te(
                        TransformerEngine.te_get_tensor_param_v2(
                                tensor.handle(), parameter, record, NVTEBasicTensor.sizeof(), written),
                        "te_get_tensor_param_v2");
                MemorySegment shape = NVTEBasicTensor.shape(record);
                StringBuilder text = new StringBuilder();
                text.append(NVTEBasicTensor.data_ptr(record).address())
                        .append(':')
                        .append(NVTEBasicTensor.dtype(record));
                for (int i = 0; i < NVTEShape.ndim(shape); i++) {
                    text.append(i == 0 ? ':' : 'x').append(NVTEShape.data(shape, i));
                }
                records.add(text.toString());
            }
        }
        return records;
    }

    private static String record(Tensor tensor) {
        String sizes = tensor.shape().toString().replaceAll("[\\[\\] ]", "").replace(',', 'x');
        return tensor.address() + ":" + tensor.dtype().code() + ":" + sizes;
    }

    @ParameterizedTest
    @EnumSource
    void theHandleDescribesEachPart(Scaling scaling) {
        QuantizedTensor tensor = scope.quantized(scaling, DType.FLOAT8_E4M3, 16, 48);
        String absent = "0:" + DType.FLOAT32.code() + ":0";
        String absentData = "0:" + DType.FLOAT8_E4M3.code() + ":0";
        assertEquals(List.of(absentData, absentData, absent, absent, absent, absent), described(tensor));
        tensor.allocateRowwise(scope).allocateColumnwise(scope);
        if (scaling == Scaling.TENSOR) {
            tensor.scale(scope.tensor(DType.FLOAT32, 1)).amax(scope.tensor(DType.FLOAT32, 1));
        }
        assertEquals(
                List.of(
                        record(tensor.rowwise()),
                        record(tensor.columnwise()),
                        tensor.scale() == null ? absent : record(tensor.scale()),
                        tensor.amax() == null ? absent : record(tensor.amax()),
                        record(tensor.rowwiseScaleInverse()),
                        record(tensor.columnwiseScaleInverse())),
                described(tensor));
        MemorySegment before = tensor.handle();
        tensor.allocateRowwise(scope);
        assertEquals(record(tensor.rowwise()), described(tensor).get(0), "a part that was set anew");
        assertSame(before, tensor.handle());
    }

    @Test
    void aRestartedScopeHandsTheSameObjectsOutWithoutParts() {
        QuantizedTensor first = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 48)
                .allocateRowwise(scope)
                .allocateColumnwise(scope);
        List<String> before = described(first);
        MemorySegment handle = first.handle();
        for (int later = 1; later < Turns.COUNT; later++) {
            scope.restart();
            assertFalse(first.isLive());
            assertNotSame(first, scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 48));
            assertFalse(first.isLive());
        }
        scope.restart();
        assertSame(first, scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 48));
        assertNull(first.rowwise());
        first.allocateRowwise(scope).allocateColumnwise(scope);
        assertEquals(before, described(first), "shapes repeat, so addresses do");
        assertEquals(handle, first.handle());
        for (int i = 0; i < Turns.COUNT; i++) {
            scope.restart();
        }
        QuantizedTensor blocks = scope.quantized(Scaling.BLOCK_2D, DType.FLOAT8_E5M2, 32, 48);
        assertSame(first, blocks);
        assertNotEquals(handle.address(), blocks.handle().address(), "a handle has its scaling for life");
        assertTrue(described(blocks).get(0).endsWith(":" + DType.FLOAT8_E5M2.code() + ":0"), "nothing is left over");
    }

    @Test
    void handingOutAndDescribingMakesNoGarbage() {
        Allocation.assertNone("a quantized tensor a step", () -> {
            scope.restart();
            scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 48)
                    .allocateRowwise(scope)
                    .allocateColumnwise(scope)
                    .scale(scope.tensor(DType.FLOAT32, 1))
                    .amax(scope.tensor(DType.FLOAT32, 1))
                    .handle();
            scope.quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 16, 300)
                    .allocateRowwise(scope)
                    .handle();
        });
    }
}
