package dev.chagres.internal;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Scratch memory that the kernels of one stream use while they run: a fixed part for matrix products, and a part that
 * grows to whatever norms and attention ask for.
 *
 * <p>Kernels of one stream run one after another, so they share it.
 *
 * <p>Threading: the device's thread.
 */
public final class Workspace implements AutoCloseable {
    private static final int ROWWISE_DATA = 0;
    private static final int FLOAT32 = 4;
    private static final long NDIM_OFFSET = 136;

    /** What TE gives cuBLASLt on Hopper: 32 MiB, and room to align. */
    private static final long PRODUCT_BYTES = (32L << 20) + 1024;

    private final DeviceState device;
    private final MemorySegment record;
    private final MemorySegment sizeWritten;
    private final MemorySegment productHandle;
    private final MemorySegment askedHandle;
    private MemorySegment productMemory;
    private MemorySegment grown = MemorySegment.NULL;
    private long grownBytes;

    /** Reserves the part for matrix products. */
    public Workspace(DeviceState device) {
        this.device = device;
        record = device.arena().allocate(DeviceState.BASIC_TENSOR_BYTES, 8);
        sizeWritten = device.arena().allocate(8, 8);
        productMemory = device.malloc(PRODUCT_BYTES);
        productHandle = create();
        askedHandle = create();
        describe(productHandle, productMemory.address(), 0, PRODUCT_BYTES);
    }

    /** Returns TE's handle of the part for matrix products. */
    MemorySegment products() {
        return productHandle;
    }

    /** Returns an unset handle: passed as workspace, it makes a function say what it needs. */
    MemorySegment asking() {
        describe(askedHandle, 0, FLOAT32, 0);
        return askedHandle;
    }

    /** Gives the handle that was filled in as much memory as it asks for, and returns it. */
    MemorySegment provided() {
        Status.te(
                TransformerEngine.te_get_tensor_param_v2(
                        askedHandle, ROWWISE_DATA, record, DeviceState.BASIC_TENSOR_BYTES, sizeWritten),
                "nvte_get_tensor_param_v2");
        long bytes = elementBytes(record.get(ValueLayout.JAVA_INT, 8));
        long rank = record.get(ValueLayout.JAVA_LONG, NDIM_OFFSET);
        for (int i = 0; i < rank; i++) {
            bytes *= record.get(ValueLayout.JAVA_LONG, 16 + 8L * i);
        }
        grow(bytes);
        record.set(ValueLayout.JAVA_LONG, 0, grown.address());
        set(askedHandle);
        return askedHandle;
    }

    /** Returns the bytes reserved now. */
    public long byteSize() {
        return PRODUCT_BYTES + grownBytes;
    }

    private void grow(long bytes) {
        if (bytes <= grownBytes) {
            return;
        }
        // Kernels enqueued earlier may still use the old memory; cudaFree waits for them.
        freeGrown();
        long rounded = (bytes + (1L << 20) - 1) & -(1L << 20);
        grown = device.malloc(rounded);
        grownBytes = rounded;
    }

    private void freeGrown() {
        MemorySegment old = grown;
        long oldBytes = grownBytes;
        grown = MemorySegment.NULL;
        grownBytes = 0;
        if (old.address() != 0) {
            device.free(old, oldBytes);
        }
    }

    private void describe(MemorySegment handle, long address, int dtype, long size) {
        record.set(ValueLayout.JAVA_LONG, 0, address);
        record.set(ValueLayout.JAVA_INT, 8, dtype);
        record.set(ValueLayout.JAVA_LONG, 16, size);
        record.set(ValueLayout.JAVA_LONG, NDIM_OFFSET, 1);
        set(handle);
    }

    private void set(MemorySegment handle) {
        Status.te(
                TransformerEngine.te_set_tensor_param_v2(handle, ROWWISE_DATA, record, DeviceState.BASIC_TENSOR_BYTES),
                "nvte_set_tensor_param_v2");
    }

    private MemorySegment create() {
        Status.te(TransformerEngine.te_create_tensor(0, device.out()), "nvte_create_tensor");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    /** Bytes of an element by TE's number of its type: Byte, Int16, Int32, Int64, Float32, Float16, BFloat16. */
    static long elementBytes(int dtype) {
        return switch (dtype) {
            case 1, 5, 6 -> 2;
            case 2, 4 -> 4;
            case 3 -> 8;
            default -> 1;
        };
    }

    /** Frees the memory. The stream must be idle. */
    @Override
    public void close() {
        MemorySegment products = productMemory;
        productMemory = MemorySegment.NULL;
        if (products.address() == 0) {
            return;
        }
        TransformerEngine.te_destroy_tensor(productHandle);
        TransformerEngine.te_destroy_tensor(askedHandle);
        device.free(products, PRODUCT_BYTES);
        freeGrown();
    }
}
