package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The numbers that change from step to step, in one block on the device, where kernels read them.
 *
 * <p>Threading: the device's thread.
 */
final class StepNumbers implements AutoCloseable {
    private final Scope scope;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment host = arena.allocate(ValueLayout.JAVA_LONG);
    private final Tensor block;
    private final Tensor learningRate;
    private final Tensor step;
    private boolean closed;

    StepNumbers(Scope scope) {
        this.scope = scope;
        Tensor rates = scope.tensor(DType.FLOAT32, 2);
        block = rates;
        learningRate = scope.view(rates, 0, 1);
        step = scope.reinterpret(rates, DType.INT32, 1, 1);
    }

    /** Enqueues both; the host's copy may change at once. */
    void write(float newRate, int newStep) {
        host.set(ValueLayout.JAVA_FLOAT, 0, newRate);
        host.set(ValueLayout.JAVA_INT, Float.BYTES, newStep);
        HostToDevice.copyHostToDeviceViaKernel(host, block, scope.stream());
    }

    /** Returns the learning rate, FLOAT32 [1]. */
    Tensor learningRate() {
        return learningRate;
    }

    /** Returns the number of the step, from 1 on, INT32 [1]. */
    Tensor step() {
        return step;
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            arena.close();
        }
    }
}
