package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Device memory that one device object owns and others of the same GPU read. It is read-only while it is offered or borrowed, and is freed once
 * its owner has left it and nobody borrows it: in whichever order they are closed.
 *
 * <p>Threading: thread-safe.
 */
public final class SharedMemory {
    private final int device;
    /** What the owner has given up. */
    private final List<MemorySegment> left = new ArrayList<>();

    private boolean offered = true;
    private int borrowers;
    private volatile boolean readOnly = true;

    /** Offers memory of the device with CUDA's number {@code device}. */
    public SharedMemory(int device) {
        this.device = device;
    }

    /**
     * Counts another one that reads the memory, until {@link #giveBack}.
     *
     * @throws IllegalStateException when the memory is offered no more
     */
    public synchronized void borrow() {
        if (!offered) {
            throw new IllegalStateException("weights: expected ones that are shared, got those whose SharedWeights or"
                    + " Parameters are closed; call SharedWeights.of again");
        }
        borrowers++;
    }

    /** Counts one less; the last one frees what the owner has left. The thread drives a device. */
    public synchronized void giveBack() {
        borrowers--;
        update();
    }

    /** Offers the memory no longer. */
    public synchronized void end() {
        offered = false;
        update();
    }

    /** Returns how many read the memory. */
    public synchronized int borrowers() {
        return borrowers;
    }

    /** Returns whether nobody may write to the memory. */
    public boolean isReadOnly() {
        return readOnly;
    }

    /** Leaves memory to those that borrow it, or frees it. */
    synchronized void leave(MemorySegment memory) {
        left.add(memory);
        update();
    }

    private void update() {
        if (offered || borrowers > 0) {
            return;
        }
        readOnly = false;
        while (!left.isEmpty()) {
            MemorySegment memory = left.removeLast();
            Driver.ofThread().makeCurrent(device);
            Status.cuda(CudaRuntime.cudaFree(memory), "cudaFree");
        }
    }
}
