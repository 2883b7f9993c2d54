package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * A handle of one of attention's tensors in eight bits, with its scale.
 *
 * <p>Threading: the device's thread.
 */
final class ScaledTensor implements AutoCloseable {
    private final BasicTensor description;
    private final MemorySegment handle;
    /** The addresses that the handle has now; they rarely change from step to step. */
    private long scale;

    private long scaleInverse;
    private long amax;

    ScaledTensor(DeviceState device) {
        description = device.basicTensor();
        handle = description.create();
    }

    /** Returns the handle of {@code data} with its scale, until the next call. */
    MemorySegment of(Tensor data, TensorScale by) {
        description.readFrom(data.handle()).writeTo(handle);
        return scaled(by);
    }

    /** Returns the handle of a tensor that exists only inside the kernel, until the next call. */
    MemorySegment ofNothing(DType dtype, TensorScale by) {
        description.at(0, dtype.code()).vector(0).writeTo(handle);
        return scaled(by);
    }

    private MemorySegment scaled(TensorScale by) {
        long newScale = by.scale().address();
        if (newScale != scale) {
            cell(newScale, kNVTEScale());
            scale = newScale;
        }
        long newInverse = by.scaleInverse().address();
        if (newInverse != scaleInverse) {
            cell(newInverse, kNVTERowwiseScaleInv());
            scaleInverse = newInverse;
        }
        long newAmax = by.amax().address();
        if (newAmax != amax) {
            cell(newAmax, kNVTEAmax());
            amax = newAmax;
        }
        return handle;
    }

    private void cell(long address, int parameter) {
        description.at(address, DType.FLOAT32.code()).vector(1).writeTo(handle, parameter);
    }

    @Override
    public void close() {
        te_destroy_tensor(handle);
    }
}
