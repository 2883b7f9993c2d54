package dev.chagres.samples.train;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.tensor.HostBuffer;
import dev.chagres.tensor.Tensor;
import java.lang.foreign.ValueLayout;

/**
 * Loss and gradient norm of a step on their way back to the host.
 *
 * <p>Threading: the device's thread.
 */
final class StepReadback implements AutoCloseable {
    private final HostBuffer loss;
    private final HostBuffer norm;
    private final Event done;
    private long completedNanos;
    private boolean completed;

    StepReadback(Device device) {
        loss = HostBuffer.pinned(device, Float.BYTES);
        norm = HostBuffer.pinned(device, Float.BYTES);
        done = device.openEvent();
    }

    /** Enqueues the copies at a step's end. */
    void enqueue(Stream stream, Tensor stepLoss, Tensor stepNorm) {
        stepLoss.copyTo(stream, loss);
        stepNorm.copyTo(stream, norm);
        done.record(stream);
        // The reference computes before it returns: then the step is done now, not when its result is read.
        completed = done.isDone();
        completedNanos = System.nanoTime();
    }

    /** Waits for the step and reads its values. */
    void read(StepResult result) {
        if (!completed) {
            done.synchronize();
            completedNanos = System.nanoTime();
        }
        result.set(
                loss.segment().get(ValueLayout.JAVA_FLOAT, 0),
                norm.segment().get(ValueLayout.JAVA_FLOAT, 0),
                completedNanos);
    }

    @Override
    public void close() {
        done.close();
        norm.close();
        loss.close();
    }
}
