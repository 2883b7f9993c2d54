package dev.chagres.batch;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Copies loss and gradient norm of each step to the host while later steps run already.
 *
 * <p>For each step: {@link #begin}, then {@link #addLoss} for each of its micro-batches, then {@link #finish}; none of these waits. {@link
 * #read} waits for the oldest step that was not read yet. Steps are timed by the device, from the end of one to the end of the next: the
 * host may read a result long after the step's end, so the host's clock would not give the time of the step.
 *
 * <p>Once every slot was used, it allocates nothing, on the device or on the Java heap.
 *
 * <p>Threading: the device's thread.
 */
public final class StepReadback implements AutoCloseable {
    private static final int MOST = 1 << 20;

    private final Stream stream;
    private final int microBatches;
    private final Scope scope;
    /** Losses of the present step by micro-batch, then its gradient norm: FLOAT32 [microBatches + 1]. */
    private final Tensor numbers;

    private final Tensor[] number;
    private final Slot[] slots;
    private boolean underWay;
    private int finished;
    private int read;
    private boolean closed;

    /** The numbers of a step, and the event of its end. */
    private static final class Slot {
        private final HostBuffer host;
        private final Event done;
        private final double[] shares;
        private int losses;

        Slot(Device device, int microBatches) {
            host = HostBuffer.pinned(device, (microBatches + 1L) * Float.BYTES);
            done = device.openEvent();
            shares = new double[microBatches];
        }

        void close() {
            done.synchronize();
            done.close();
            host.close();
        }
    }

    /**
     * Allocates a little memory, pinned and on the device.
     *
     * @param stream the stream of the steps
     * @param microBatches the most micro-batches of a step
     * @param unread the most steps that may be finished and not read
     * @throws IllegalArgumentException when a number is below 1, or above 1,048,576
     */
    public StepReadback(Stream stream, int microBatches, int unread) {
        this.stream = Checks.given("stream", stream);
        if (microBatches < 1 || unread < 1 || microBatches > MOST || unread > MOST) {
            throw new IllegalArgumentException(
                    "microBatches, unread: expected 1 to " + MOST + " each, got " + microBatches + " and " + unread);
        }
        this.microBatches = microBatches;
        Device device = stream.device();
        number = new Tensor[microBatches + 1];
        // One more: the oldest unread step is timed from the end of the step before it.
        slots = new Slot[unread + 1];
        try (Opened opened = new Opened()) {
            scope = opened.add(device.openScope(stream)).countedAs(MemoryUse.Holder.BATCHES);
            numbers = scope.tensor(DType.FLOAT32, microBatches + 1L);
            for (int i = 0; i < number.length; i++) {
                number[i] = scope.view(numbers, i, 1);
            }
            for (int i = 0; i < slots.length; i++) {
                Slot slot = new Slot(device, microBatches);
                opened.add(slot::close);
                slots[i] = slot;
            }
            opened.keep();
        }
    }

    /**
     * Begins a step, before its work is enqueued; one that was begun and not finished begins anew.
     *
     * @throws IllegalStateException when as many steps are unread as there may be, or this is closed
     */
    public void begin() {
        ensureOpen();
        if (finished - read == slots.length - 1) {
            throw new IllegalStateException("the result of step " + (read + 1) + " must be read first");
        }
        if (finished == 0) {
            slots[slots.length - 1].done.record(stream);
        }
        slots[finished % slots.length].losses = 0;
        underWay = true;
    }

    /**
     * Enqueues the copy of a micro-batch's loss.
     *
     * @param loss FLOAT32 [1]: the mean over the micro-batch's labelled tokens
     * @param share the factor on it: the micro-batch's labelled tokens divided by those of the step, {@link Batch#share}
     * @throws IllegalArgumentException when it is no FLOAT32 [1] of the stream's device
     * @throws IllegalStateException when no step is begun, it has all its losses, or this is closed
     */
    public void addLoss(Tensor loss, double share) {
        Slot slot = underWay();
        if (slot.losses == microBatches) {
            throw new IllegalStateException(
                    "step " + (finished + 1) + " has the losses of its " + microBatches + " micro-batches already");
        }
        number[slot.losses].copyFrom(stream, Checks.vector(stream, "loss", loss, DType.FLOAT32, 1));
        slot.shares[slot.losses++] = share;
    }

    /**
     * Enqueues the copy of the gradient norm and marks the end of the step: called after the optimizer's work is enqueued.
     *
     * @param gradNorm FLOAT32 [1]
     * @throws IllegalArgumentException when it is no FLOAT32 [1] of the stream's device
     * @throws IllegalStateException when no step is begun, or this is closed
     */
    public void finish(Tensor gradNorm) {
        Slot slot = underWay();
        number[microBatches].copyFrom(stream, Checks.vector(stream, "gradNorm", gradNorm, DType.FLOAT32, 1));
        numbers.copyTo(stream, slot.host);
        slot.done.record(stream);
        finished++;
        underWay = false;
    }

    /**
     * Times the next step from here on, and not from the end of the step before: what was enqueued since, such as an evaluation, does not
     * count.
     *
     * @throws IllegalStateException when a step is unread, or this is closed
     */
    public void restartClock() {
        ensureOpen();
        if (read != finished) {
            throw new IllegalStateException(
                    "restartClock: expected every step to be read, got " + (finished - read) + " unread");
        }
        if (finished > 0) {
            slots[(finished - 1) % slots.length].done.record(stream);
        }
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the step readback of " + stream + " is closed");
        }
    }

    private Slot underWay() {
        ensureOpen();
        if (!underWay) {
            throw new IllegalStateException("no step is begun, " + finished + " are finished; call begin() first");
        }
        return slots[finished % slots.length];
    }

    /**
     * Waits for the oldest step that was not read yet.
     *
     * @param result gets the step's loss, the sum of its micro-batches' losses times their shares; gradient norm and time
     * @throws IllegalStateException when every finished step was read, or this is closed
     */
    public void read(StepResult result) {
        ensureOpen();
        Checks.given("result", result);
        if (read == finished) {
            throw new IllegalStateException("no result is unread, " + read + " steps were made");
        }
        Slot slot = slots[read % slots.length];
        slot.done.synchronize();
        MemorySegment host = slot.host.segment();
        double loss = 0;
        for (int i = 0; i < slot.losses; i++) {
            loss += slot.shares[i] * host.getAtIndex(ValueLayout.JAVA_FLOAT, i);
        }
        float gradNorm = host.getAtIndex(ValueLayout.JAVA_FLOAT, microBatches);
        Event before = slots[(read + slots.length - 1) % slots.length].done;
        result.set(loss, gradNorm, slot.done.millisSince(before));
        read++;
    }

    /** Waits for the finished steps and frees the memory. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        Inside.state(stream).ensureCloses();
        closed = true;
        for (Slot slot : slots) {
            slot.close();
        }
        scope.close();
    }
}
