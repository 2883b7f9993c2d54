package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import java.lang.foreign.MemorySegment;

/**
 * What the host does for each step beside enqueuing kernels: it writes numbers that the kernels read, and moves counters on. It is
 * done at once, or, where a stream captures, at each launch of the graph; see {@code Inside.eachStep}.
 *
 * <p>Threading: the device's thread.
 */
public interface StepWork {
    /**
     * Checks that {@link #write} and {@link #numbers} can be called.
     *
     * @throws IllegalStateException when they cannot, such as after a close
     */
    default void check() {}

    /**
     * Checks that the host has set the numbers of the coming step that only the program knows. A replay does not run the code of the step,
     * which would set them.
     *
     * @throws IllegalStateException when they would be those of the step before
     */
    default void checkSet() {}

    /**
     * Enqueues what else the coming step needs, before its numbers, on the stream that {@code Inside.eachStep} was given. Counters stay,
     * for the step may still fail.
     */
    default void write() {}

    /** Returns the bytes of {@link #numbers}; 0: there are none yet. Once there are some, it is always the same. */
    default long byteSize() {
        return 0;
    }

    /** Returns where kernels read the numbers; once there are some, always the same. */
    default long address() {
        return 0;
    }

    /** Returns the numbers of the coming step, in host memory that is copied before the next call. */
    default MemorySegment numbers() {
        return MemorySegment.NULL;
    }

    /** Moves the counters on: the step is enqueued. */
    default void count() {}

    /** Does all of it now, on a stream that does not capture. */
    default void enqueue(MemorySegment stream) {
        check();
        write();
        long bytes = byteSize();
        if (bytes != 0) {
            Status.te(
                    AddressCalls.te_copy_host_to_device_via_kernel(numbers(), address(), bytes, stream),
                    "te_copy_host_to_device_via_kernel");
        }
        count();
    }
}
