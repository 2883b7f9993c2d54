package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.te.HostToDevice;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The numbers that change from step to step, in one block on the device, where kernels read them: learning rate by group and
 * number of the step. The host counts steps, unless a loss scaler decides on the device which ones are taken.
 *
 * <p>Threading: the device's thread.
 */
final class StepNumbers implements AutoCloseable {
    private final Scope scope;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment host;
    private final Tensor block;
    /** The factor of each group on the rate. */
    private final float[] factors;

    private final Tensor rates;
    private final Tensor step;
    private int taken;
    /** Whether the device counts: {@link #step} then holds the number of steps taken. */
    private boolean deviceCounts;

    private boolean closed;

    StepNumbers(Scope scope, float... factors) {
        this.scope = scope;
        this.factors = factors.clone();
        host = arena.allocate(ValueLayout.JAVA_INT, factors.length + 1L);
        block = scope.tensor(DType.FLOAT32, factors.length + 1L);
        rates = scope.view(block, 0, factors.length);
        step = scope.reinterpret(block, DType.INT32, factors.length, 1);
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
            setRates(rate);
            HostToDevice.copyHostToDeviceViaKernel(host, rates, scope.stream());
        } else {
            write(rate);
            deviceCounts = true;
        }
        scaler.update(skip, step);
    }

    private void setRates(float rate) {
        for (int i = 0; i < factors.length; i++) {
            host.setAtIndex(ValueLayout.JAVA_FLOAT, i, rate * factors[i]);
        }
    }

    /** Enqueues all; the host's copy may change at once. */
    private void write(float rate) {
        setRates(rate);
        host.setAtIndex(ValueLayout.JAVA_INT, factors.length, taken);
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

    /** Returns the learning rate of a group, FLOAT32 [1]. */
    Tensor rate(int group) {
        return scope.view(rates, group, 1);
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
