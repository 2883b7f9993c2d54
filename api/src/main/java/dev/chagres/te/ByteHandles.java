package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Handles of matrices that a call copies. For FP8 TE requires a scale, which a copy does not use, so the handles of FP8 matrices declare
 * bytes. They are made once per device and described anew in each call.
 *
 * <p>Threading: the device's thread.
 */
final class ByteHandles implements AutoCloseable {
    private static final DeviceState.Attachment<ByteHandles> ATTACHMENT =
            new DeviceState.Attachment<>(ByteHandles::new);

    private final BasicTensor description;
    private final List<MemorySegment> made = new ArrayList<>();

    private ByteHandles(DeviceState device) {
        description = device.basicTensor();
    }

    /** Returns the handles of the stream's device. */
    static ByteHandles of(Stream stream) {
        return Inside.state(stream).get(ATTACHMENT);
    }

    /** Returns a handle of the matrix; each matrix of a call has its own {@code index}. */
    MemorySegment handle(int index, Tensor matrix) {
        if (!matrix.dtype().isFloat8()) {
            return matrix.handle();
        }
        while (made.size() <= index) {
            made.add(description.create());
        }
        MemorySegment handle = made.get(index);
        description
                .at(matrix.address(), DType.BYTE.code())
                .matrix(matrix.size(0), matrix.size(1))
                .writeTo(handle);
        return handle;
    }

    @Override
    public void close() {
        for (MemorySegment handle : made) {
            TransformerEngine.te_destroy_tensor(handle);
        }
    }
}
