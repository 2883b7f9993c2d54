package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertFalse;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The texts of what quantized tensors refuse. */
@Tag("L0")
@Tag("L1")
class QuantizedTensorMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

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

    private QuantizedTensor quantized(Scaling scaling) {
        return scope.quantized(scaling, DType.FLOAT8_E4M3, 16, 300);
    }

    @Test
    @SuppressWarnings("NullAway") // What a caller without the check may pass.
    void whatNoQuantizedTensorIs() {
        assertThrown(
                ARGUMENT,
                "dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got BFLOAT16",
                () -> scope.quantized(Scaling.TENSOR, DType.BFLOAT16, 2, 2));
        assertThrown(
                ARGUMENT,
                "shape: expected no negative size, got [2, -1]",
                () -> scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 2, -1));
        assertThrown(
                NullPointerException.class,
                "scaling: expected a value, got null",
                () -> scope.quantized(null, DType.FLOAT8_E4M3, 2, 2));
        assertThrown(
                NullPointerException.class,
                "dtype: expected a value, got null",
                () -> scope.quantized(Scaling.TENSOR, null, 2, 2));
        assertThrown(
                NullPointerException.class,
                "data: expected a value, got null",
                () -> quantized(Scaling.TENSOR).rowwise(null, null));
        assertThrown(
                ARGUMENT,
                "shape: expected no negative size, got [-3, 2]",
                () -> Scaling.BLOCK_1D.scaleInverseShape(-3, 2));
    }

    @Test
    void shapesAndTypes() {
        QuantizedTensor tensor = quantized(Scaling.TENSOR);
        Tensor one = scope.tensor(DType.FLOAT32, 1);
        Tensor data = scope.tensor(DType.FLOAT8_E4M3, 16, 300);
        assertThrown(
                ARGUMENT,
                "data: expected FLOAT8_E4M3[16, 300], got FLOAT8_E5M2[16, 300]",
                () -> tensor.rowwise(scope.tensor(DType.FLOAT8_E5M2, 16, 300), one));
        assertThrown(
                ARGUMENT,
                "data: expected FLOAT8_E4M3[16, 300], got FLOAT8_E4M3[300, 16]",
                () -> tensor.rowwise(scope.tensor(DType.FLOAT8_E4M3, 300, 16), one));
        assertThrown(
                ARGUMENT,
                "dataTransposed: expected FLOAT8_E4M3[300, 16], got FLOAT8_E4M3[16, 300]",
                () -> tensor.columnwise(data, one));
        assertThrown(
                ARGUMENT,
                "scaleInverse: expected FLOAT32[1], got BFLOAT16[1]",
                () -> tensor.rowwise(data, scope.tensor(DType.BFLOAT16, 1)));
        assertThrown(
                ARGUMENT,
                "scaleInverse: expected FLOAT32[1], got FLOAT32[1, 1]",
                () -> tensor.rowwise(data, scope.tensor(DType.FLOAT32, 1, 1)));
        assertThrown(
                ARGUMENT,
                "scale: expected FLOAT32[1], got FLOAT32[2]",
                () -> tensor.scale(scope.tensor(DType.FLOAT32, 2)));
        assertThrown(
                ARGUMENT, "amax: expected FLOAT32[1], got FLOAT32[]", () -> tensor.amax(scope.tensor(DType.FLOAT32)));
        assertThrown(
                ARGUMENT,
                "scaleInverse: expected FLOAT32[3, 16], got FLOAT32[1]",
                () -> quantized(Scaling.BLOCK_1D).rowwise(data, one));
        assertThrown(
                ARGUMENT,
                "scaleInverse: expected FLOAT32[3, 4], got FLOAT32[1, 4]",
                () -> quantized(Scaling.BLOCK_2D)
                        .columnwise(scope.tensor(DType.FLOAT8_E4M3, 300, 16), scope.tensor(DType.FLOAT32, 1, 4)));
    }

    @Test
    void blocksHaveNoScaleFromOutside() {
        Tensor one = scope.tensor(DType.FLOAT32, 1);
        String tail = ": expected none, for quantizing by BLOCK_1D computes the scale of each block; leave it out";
        assertThrown(ARGUMENT, "scale" + tail, () -> quantized(Scaling.BLOCK_1D).scale(one));
        assertThrown(ARGUMENT, "amax" + tail, () -> quantized(Scaling.BLOCK_1D).amax(one));
    }

    @Test
    void anotherDevice() {
        try (Device other = Device.open();
                Scope there = other.openScope()) {
            assertThrown(
                    ARGUMENT,
                    "data: expected a tensor of device 0, got FLOAT8_E4M3[16, 300] of device 0, opened another time",
                    () -> quantized(Scaling.TENSOR).allocateRowwise(there));
        }
    }

    @Test
    void closedParts() {
        QuantizedTensor tensor = quantized(Scaling.TENSOR).allocateRowwise(scope);
        try (Scope nested = scope.open()) {
            tensor.amax(nested.tensor(DType.FLOAT32, 1));
            tensor.handle();
        }
        assertFalse(tensor.isLive());
        assertThrown(STATE, "tensor FLOAT32[1] of nested scope of device 0 is closed: so is its scope", tensor::handle);
        tensor.amax(scope.tensor(DType.FLOAT32, 1)).handle();
    }

    @Test
    void partsWhoseScopeWasRestarted() {
        try (Scope other = device.openScope()) {
            QuantizedTensor tensor =
                    quantized(Scaling.TENSOR).allocateRowwise(scope).scale(other.tensor(DType.FLOAT32, 1));
            other.restart();
            other.tensor(DType.FLOAT32, 1);
            assertFalse(tensor.isLive());
            assertThrown(
                    STATE,
                    "QuantizedTensor FLOAT8_E4M3[16, 300] TENSOR: its scale is closed, for its scope was restarted; set"
                            + " another one",
                    tensor::handle);
        }
    }

    @Test
    void closedItself() {
        QuantizedTensor tensor = quantized(Scaling.TENSOR);
        scope.restart();
        Tensor one = scope.tensor(DType.FLOAT32, 1);
        String closed = "QuantizedTensor FLOAT8_E4M3[16, 300] TENSOR of scope of device 0 is closed: ";
        assertThrown(STATE, closed + "the scope was restarted since", tensor::handle);
        assertThrown(STATE, closed + "the scope was restarted since", () -> tensor.scale(one));
        QuantizedTensor again = quantized(Scaling.TENSOR);
        again.handle();
        scope.close();
        assertFalse(again.isLive());
        assertThrown(STATE, closed + "so is its scope", again::handle);
        assertThrown(
                STATE, "scope of device 0 is closed", () -> scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 2, 2));
    }
}
