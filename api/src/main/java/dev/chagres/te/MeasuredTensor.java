package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * A handle, one per device, for matrices of 16 or 32 bits whose amax is computed by the kernel that writes them.
 *
 * <p>Threading: the device's thread.
 */
final class MeasuredTensor implements AutoCloseable {
    private static final DeviceState.Attachment<MeasuredTensor> ATTACHMENT =
            new DeviceState.Attachment<>(MeasuredTensor::new);

    private final BasicTensor description;
    private final MemorySegment handle;

    private MeasuredTensor(DeviceState device) {
        description = device.basicTensor();
        handle = description.create();
    }

    /** Returns the handle of {@code matrix} with {@code amax}, until the next call. */
    static MemorySegment handle(Tensor matrix, Tensor amax, Stream stream) {
        MeasuredTensor measured = Inside.state(stream).get(ATTACHMENT);
        measured.description
                .at(matrix.address(), matrix.dtype().code())
                .matrix(matrix.size(0), matrix.size(1))
                .writeTo(measured.handle);
        measured.description
                .at(amax.address(), DType.FLOAT32.code())
                .vector(1)
                .writeTo(measured.handle, TransformerEngine.kNVTEAmax());
        return measured.handle;
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_tensor(handle);
    }
}
