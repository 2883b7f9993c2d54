package dev.chagres.internal.memory;

import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import org.jspecify.annotations.Nullable;

/**
 * A thread that drives devices, and what holds for all of them: which one CUDA has as its current one, and whether calls are collected
 * or captured that run later.
 *
 * <p>Threading: one for each thread, used by that thread; its name and whether it lives by any.
 */
final class Driver {
    private static final ThreadLocal<Driver> DRIVERS = ThreadLocal.withInitial(Driver::new);

    /** This copy of the classes, of which two applications of a server have one each. */
    private static final String COPY = Driver.class.getClassLoader() + "@"
            + Integer.toHexString(System.identityHashCode(Driver.class.getClassLoader()));

    private final Thread thread = Thread.currentThread();
    /** A property, since copies of this class share no variable: the copy whose devices the thread drives. */
    private final String drivingCopy = "dev.chagres.driver." + thread.threadId();

    /** The open devices that the thread drives. */
    private int devices;

    private int current = -1;
    /** Whether a group of collectives is open, which NCCL runs at its end. */
    private boolean grouping;
    /** The device of which a stream captures, or null: CUDA then refuses some calls on every device of the thread. */
    private @Nullable DeviceState capturing;

    private Driver() {}

    /** Returns that of the calling thread. */
    static Driver ofThread() {
        return DRIVERS.get();
    }

    /**
     * Checks that the calling thread can drive a device.
     *
     * @throws WrongThreadException when it is a virtual one
     */
    static void refuseVirtual() {
        if (Thread.currentThread().isVirtual()) {
            throw new WrongThreadException(
                    "a device is driven by a platform thread: TE, cuBLASLt and cuDNN keep state per OS thread, and a"
                            + " virtual thread may change its carrier; start one with Thread.ofPlatform()");
        }
    }

    /** Returns whether this is the calling thread. */
    boolean isHere() {
        return thread == Thread.currentThread();
    }

    /** Returns whether the thread has not ended. */
    boolean isAlive() {
        return thread.isAlive();
    }

    String name() {
        return thread.getName();
    }

    /**
     * Counts a device that the thread drives from now on.
     *
     * @throws IllegalStateException when it drives one of another copy of these classes: each would take its own device for the current one
     */
    synchronized void take() {
        if (devices == 0) {
            @Nullable Object other = System.getProperties().putIfAbsent(drivingCopy, COPY);
            if (other != null && !other.equals(COPY)) {
                throw new IllegalStateException("thread " + ForeignText.quoted(thread.getName())
                        + " drives a device of another copy of Chagres, which class loader "
                        + ForeignText.plain(other)
                        + " has loaded: close or detach that device first, or use another thread");
            }
            current = -1;
        }
        devices++;
    }

    /** Counts a device that the thread drives no longer; any thread may say so. */
    synchronized void release() {
        if (--devices == 0) {
            System.getProperties().remove(drivingCopy);
        }
    }

    /** Makes a device CUDA's current one on the thread, which is the calling one. */
    void makeCurrent(int device) {
        if (current != device) {
            Status.cuda(CudaRuntime.cudaSetDevice(device), "cudaSetDevice");
            current = device;
        }
    }

    /** Sets whether the thread collects calls that run later, on memory of any of its devices. */
    void grouping(boolean now) {
        grouping = now;
    }

    boolean isGrouping() {
        return grouping;
    }

    /** Sets the device of which a stream captures now, or null; returns the previous one. */
    @Nullable
    DeviceState exchangeCapturing(@Nullable DeviceState now) {
        DeviceState before = capturing;
        capturing = now;
        return before;
    }

    /** Returns the device of which a stream captures, or null. */
    @Nullable
    DeviceState capturing() {
        return capturing;
    }
}
