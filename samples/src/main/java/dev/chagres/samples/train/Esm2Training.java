package dev.chagres.samples.train;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.Accumulation;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.samples.data.Batch;
import dev.chagres.samples.data.BatchLayout;
import dev.chagres.samples.data.BatchShape;
import dev.chagres.samples.esm.Esm2;
import dev.chagres.samples.esm.Esm2Config;
import org.jspecify.annotations.Nullable;

/**
 * ESM-2 with its optimizer: each step is forward, backward, clipping of the gradients' norm to 1, and AdamW (0.9, 0.98,
 * 1e-8, decay 0.01 of matrices).
 *
 * <p>A step that repeats the shapes of earlier ones allocates nothing on the device and makes no Java object.
 *
 * <p>Threading: the device's thread.
 */
public final class Esm2Training implements TrainingModel {
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);
    private static final float MAX_NORM = 1;
    /** One step whose result is unread, one under way, one whose batch is being uploaded. */
    private static final int UPLOADS = 3;
    /** Steps whose results may be unread at a time. */
    private static final int UNREAD = 2;
    /** Those, and the step before them, from whose end the oldest is timed. */
    private static final int READBACKS = UNREAD + 1;

    private final Device device;
    private final Esm2Config config;
    private final BatchShape shape;
    private final Stream stream;
    private final Esm2 model;
    private final GradientNorm gradientNorm;
    private final AdamW optimizer;
    private final Scope scope;
    private final BatchUpload[] uploads = new BatchUpload[UPLOADS];
    private final StepReadback[] readbacks = new StepReadback[READBACKS];
    private @Nullable Sequences sequences;
    private int uploaded;
    private int stepped;
    private int read;
    private boolean closed;

    /**
     * Makes the model with its first weights, and all that a step needs.
     *
     * @param dtype type of weights and activations; gradients, master weights and optimizer state are FLOAT32
     * @param shape the most that a batch may hold
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2Training(Device device, Esm2Config config, DType dtype, BatchShape shape, long seed) {
        this.device = device;
        this.config = config;
        this.shape = shape;
        stream = device.stream();
        model = new Esm2(device, config, dtype, seed);
        gradientNorm = new GradientNorm(model.parameters(), MAX_NORM);
        optimizer = new AdamW(model.parameters(), ADAM);
        scope = device.openScope();
        Stream copies = device.openStream();
        for (int i = 0; i < UPLOADS; i++) {
            uploads[i] = new BatchUpload(device, copies, shape);
        }
        for (int i = 0; i < READBACKS; i++) {
            readbacks[i] = new StepReadback(device);
        }
    }

    /** Returns the model. */
    public Esm2 model() {
        return model;
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when three batches are uploaded whose results were not read
     */
    @Override
    public void upload(Batch batch) {
        if (uploaded - read == UPLOADS) {
            throw new IllegalStateException("the result of step " + (read + 1) + " must be read first");
        }
        uploads[uploaded++ % UPLOADS].copy(batch);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when no batch was uploaded for this step, or two results are unread
     */
    @Override
    public void step(float learningRate) {
        if (stepped == uploaded) {
            throw new IllegalStateException("no batch was uploaded for step " + (stepped + 1));
        }
        if (stepped - read == UNREAD) {
            throw new IllegalStateException("the result of step " + (read + 1) + " must be read first");
        }
        if (stepped == 0) {
            readbacks[READBACKS - 1].mark(stream);
        }
        scope.restart();
        Esm2.Saved saved = gradients(uploads[stepped % UPLOADS]);
        gradientNorm.compute(stream);
        optimizer.step(stream, learningRate, gradientNorm);
        readbacks[stepped % READBACKS].enqueue(stream, saved.loss(), gradientNorm.norm());
        stepped++;
    }

    private Esm2.Saved gradients(BatchUpload batch) {
        Tensor both = batch.tokens(scope);
        long tokens = both.count() / 2;
        Tensor ids = scope.view(both, 0, tokens);
        Tensor labels = scope.view(both, tokens, tokens);
        Sequences present = describe(batch.cuSeqlens(scope));
        sequences = present;
        Esm2.Saved saved = model.forward(ids, labels, present, scope);
        model.backward(saved, Accumulation.OVERWRITE, scope);
        return saved;
    }

    /** Says how the sequences lie; the same object as before where that still holds. */
    private Sequences describe(CuSeqlens cuSeqlens) {
        Sequences before = sequences;
        if (shape.layout() == BatchLayout.PACKED) {
            return Sequences.packedAgain(before, cuSeqlens);
        }
        return before != null && before.cuSeqlens() == cuSeqlens && before.batch() == cuSeqlens.sequences()
                ? before
                : Sequences.padded(Sequences.Format.BSHD, cuSeqlens, shape.context());
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when every result was read
     */
    @Override
    public void result(StepResult result) {
        if (read == stepped) {
            throw new IllegalStateException("no result is unread, " + read + " steps were made");
        }
        readbacks[read % READBACKS].read(result, readbacks[(read + READBACKS - 1) % READBACKS]);
        read++;
    }

    @Override
    public long parameterCount() {
        return model.parameters().count();
    }

    @Override
    public double flops(Batch batch) {
        return config.flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public long memoryBytes() {
        return device.peakHeldBytes();
    }

    /** Waits for the steps under way and frees everything. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        device.synchronize();
        for (BatchUpload upload : uploads) {
            upload.close();
        }
        for (StepReadback readback : readbacks) {
            readback.close();
        }
        scope.close();
        optimizer.close();
        model.close();
    }
}
