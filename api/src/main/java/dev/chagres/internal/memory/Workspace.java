package dev.chagres.internal.memory;

import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * Scratch memory that the kernels of one stream use while they run: a fixed part for matrix products, and a part that
 * grows to whatever norms and attention ask for.
 *
 * <p>Kernels of one stream run one after another, so they share it.
 *
 * <p>Threading: the device's thread.
 */
public final class Workspace implements AutoCloseable {
    /** What TE gives cuBLASLt on Hopper: 32 MiB, and room to align. */
    private static final long PRODUCT_BYTES = (32L << 20) + 1024;

    private final DeviceState device;
    private final int holder;
    private final MemorySegment productHandle;
    private final MemorySegment askedHandle;
    private MemorySegment productMemory = MemorySegment.NULL;
    private MemorySegment grown = MemorySegment.NULL;
    private long grownBytes;
    private boolean closed;

    /** Makes a workspace that takes memory when it is asked for some. */
    public Workspace(DeviceState device, int holder) {
        this.device = device;
        this.holder = holder;
        productHandle = device.basicTensor().create();
        askedHandle = device.basicTensor().create();
    }

    /** Returns TE's handle of the part for matrix products. */
    public MemorySegment products() {
        productAddress();
        return productHandle;
    }

    /** Returns the address of the part for matrix products. */
    public long productAddress() {
        if (productMemory.address() == 0) {
            productMemory = device.malloc(PRODUCT_BYTES, holder);
            describe(productHandle, productMemory, PRODUCT_BYTES);
        }
        return productMemory.address();
    }

    /** Returns the bytes of the part for matrix products. */
    public long productBytes() {
        return PRODUCT_BYTES;
    }

    /** Returns an unset handle: passed as workspace, it makes a function say what it needs. */
    public MemorySegment asking() {
        describe(askedHandle, MemorySegment.NULL, 0);
        return askedHandle;
    }

    /** Returns the bytes that a function has asked for through {@link #asking}. */
    public long asked() {
        return device.basicTensor().readFrom(askedHandle).byteSize();
    }

    /** Gives the handle {@code bytes} of memory, and returns it. */
    public MemorySegment provided(long bytes) {
        grow(bytes);
        describe(askedHandle, grown, bytes);
        return askedHandle;
    }

    /** Returns the address of {@code bytes} of memory. */
    public long grownAddress(long bytes) {
        grow(bytes);
        return grown.address();
    }

    /** Returns the bytes reserved now. */
    public long byteSize() {
        return (productMemory.address() == 0 ? 0 : PRODUCT_BYTES) + grownBytes;
    }

    private void grow(long bytes) {
        if (bytes <= grownBytes) {
            return;
        }
        // Kernels enqueued earlier may still use the old memory; cudaFree waits for them.
        freeGrown();
        long rounded = (bytes + (1L << 20) - 1) & -(1L << 20);
        grown = device.malloc(rounded, holder);
        grownBytes = rounded;
    }

    private void freeGrown() {
        MemorySegment old = grown;
        long oldBytes = grownBytes;
        grown = MemorySegment.NULL;
        grownBytes = 0;
        if (old.address() != 0) {
            device.free(old, oldBytes, holder);
        }
    }

    private void describe(MemorySegment handle, MemorySegment memory, long bytes) {
        device.basicTensor()
                .at(memory.address(), TransformerEngine.kNVTEByte())
                .vector(bytes)
                .writeTo(handle);
    }

    /** Frees the memory. The stream must be idle. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        TransformerEngine.te_destroy_tensor(productHandle);
        TransformerEngine.te_destroy_tensor(askedHandle);
        if (productMemory.address() != 0) {
            device.free(productMemory, PRODUCT_BYTES, holder);
        }
        freeGrown();
    }
}
