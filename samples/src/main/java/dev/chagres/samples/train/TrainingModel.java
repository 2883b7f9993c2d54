package dev.chagres.samples.train;

import dev.chagres.samples.data.Batch;

/**
 * A model with its optimizer, as the training loop drives it. A step's result is read while the next step runs already:
 *
 * <pre>
 *   upload(0)  step  upload(1)  step  result(0)  upload(2)  step  result(1) …
 * </pre>
 *
 * <p>Threading: confined to the thread that made it.
 */
public interface TrainingModel extends AutoCloseable {
    /** Copies a batch to where the next {@link #step} reads it; on return the batch may be filled again. */
    void upload(Batch batch);

    /**
     * Enqueues forward, backward, clipping and update on the batch uploaded last, and returns as soon as that is enqueued.
     */
    void step(float learningRate);

    /** Waits for the oldest step whose result was not read yet, and reads it. */
    void result(StepResult result);

    /** Returns the number of trained parameters. */
    long parameterCount();

    /** Returns the floating-point operations of a step on this batch, forward and backward, padding left out. */
    double flops(Batch batch);

    /** Returns the most device memory held so far, in bytes. */
    long memoryBytes();

    @Override
    void close();
}
