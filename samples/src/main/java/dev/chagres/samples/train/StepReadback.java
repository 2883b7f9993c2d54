package dev.chagres.samples.train;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import java.lang.foreign.ValueLayout;

/**
 * Loss and gradient norm of a step on their way back to the host, and the mark of its end.
 *
 * <p>Steps are timed by the device: the host reads a result when it gets to it, which may be long after the step's end for
 * all steps but the last, so that its clock would take from the last what it gave the one before.
 *
 * <p>Threading: the device's thread.
 */
final class StepReadback implements AutoCloseable {
    private final HostBuffer loss;
    private final HostBuffer norm;
    private final Event done;

    StepReadback(Device device) {
        loss = HostBuffer.pinned(device, Float.BYTES);
        norm = HostBuffer.pinned(device, Float.BYTES);
        done = device.openEvent();
    }

    /** Marks the present end of the stream as that of a step that copied nothing: the one before the first. */
    void mark(Stream stream) {
        done.record(stream);
    }

    /** Enqueues the copies at a step's end. */
    void enqueue(Stream stream, Tensor stepLoss, Tensor stepNorm) {
        stepLoss.copyTo(stream, loss);
        stepNorm.copyTo(stream, norm);
        done.record(stream);
    }

    /** Waits for the step and reads its values; {@code before} has the end of the step before. */
    void read(StepResult result, StepReadback before) {
        done.synchronize();
        result.set(
                loss.segment().get(ValueLayout.JAVA_FLOAT, 0),
                norm.segment().get(ValueLayout.JAVA_FLOAT, 0),
                done.millisSince(before.done));
    }

    @Override
    public void close() {
        done.close();
        norm.close();
        loss.close();
    }
}
