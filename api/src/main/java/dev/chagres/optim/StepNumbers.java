package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The numbers that change from step to step, in one block on the device, where kernels read them: learning rate and number of
 * the step. The host counts steps, unless a loss scaler decides on the device which ones are taken.
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
    private int taken;
    /** Whether the device counts: {@link #step} then holds the number of steps taken. */
    private boolean deviceCounts;

    private boolean closed;

    StepNumbers(Scope scope) {
        this.scope = scope;
        Tensor rates = scope.tensor(DType.FLOAT32, 2);
        block = rates;
        learningRate = scope.view(rates, 0, 1);
        step = scope.reinterpret(rates, DType.INT32, 1, 1);
    }

    /** Enqueues rate and number of the next step, which is taken whatever its gradients are. */
    void next(float rate) {
        taken = Math.addExact(taken(), 1);
        deviceCounts = false;
        write(rate);
    }

    /** Enqueues the rate of the next step, of which {@code scaler} decides on the device whether it is taken. */
    void next(float rate, LossScaler scaler, Tensor skip) {
        if (deviceCounts) {
            host.set(ValueLayout.JAVA_FLOAT, 0, rate);
            HostToDevice.copyHostToDeviceViaKernel(host, learningRate, scope.stream());
        } else {
            write(rate);
            deviceCounts = true;
        }
        scaler.update(skip, step);
    }

    /** Enqueues both; the host's copy may change at once. */
    private void write(float rate) {
        host.set(ValueLayout.JAVA_FLOAT, 0, rate);
        host.set(ValueLayout.JAVA_INT, Float.BYTES, taken);
        HostToDevice.copyHostToDeviceViaKernel(host, block, scope.stream());
    }

    /** Returns the number of steps taken; where the device counts, this waits for it. */
    int taken() {
        return deviceCounts ? step.toInts(scope.stream())[0] : taken;
    }

    /** Goes on as after so many steps. */
    void restore(long steps) {
        taken = Math.toIntExact(steps);
        deviceCounts = false;
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
