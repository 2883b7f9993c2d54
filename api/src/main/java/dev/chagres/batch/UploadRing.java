package dev.chagres.batch;

import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.Opened;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Uploads batches to the device: they are copied from pinned memory, on a separate stream, while a step runs on another.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="uploadRing"}
 *
 * <p>A batch is usually on the device before {@link #next} returns its first micro-batch, so that steps do not wait for copies. With three
 * batches, one may be uploaded while the step before it is enqueued and the step before that one still runs. Once every slot was used with
 * the same shapes, it allocates nothing, on the device or on the Java heap.
 *
 * <p>Threading: the device's thread.
 */
public final class UploadRing implements AutoCloseable {
    private static final int MOST = 1024;
    /** More objects than a scope has for a place in its order: a scope that hands out in another order each step fills no list. */
    private static final int MOST_INPUTS = 64;

    private final BatchShape shape;
    private final Stream copies;
    private final UploadSlot[] slots;
    /** Indexed by the micro-batch's number in its batch, since all micro-batches of a batch may be in use at the same time. */
    private final Brought[] inputs;

    private int uploaded;
    /** The number of batches of which every micro-batch was copied to a scope. */
    private int brought;

    private boolean closed;

    /**
     * Allocates pinned memory for the largest batches.
     *
     * @param shape of the batches
     * @param batches the number of slots: 2, or 3 if a step is enqueued before the step before it has ended
     * @throws IllegalArgumentException when {@code batches} is below 1, or above 1,024
     */
    public UploadRing(Device device, BatchShape shape, int batches) {
        this(device, shape, batches, -1, ContextParallel.none());
    }

    /**
     * Allocates pinned memory for the largest batches, of which this rank's part of the tokens is uploaded: ids and labels are those of
     * {@link ContextParallel#own}, {@link ModelInput#share} counts the labels of this part, and the sequences are those of all tokens.
     *
     * @param shape of the batches
     * @param batches the number of slots: 2, or 3 if a step is enqueued before the step before it has ended
     * @param ranks that split the tokens of each micro-batch
     * @throws IllegalArgumentException when {@code batches} is below 1, or above 1,024
     */
    public static UploadRing ofPart(Device device, BatchShape shape, int batches, ContextParallel ranks) {
        return new UploadRing(device, shape, batches, -1, Checks.given("ranks", ranks));
    }

    /**
     * Allocates pinned memory for the largest batches, for a {@link StepGraph}: the tokens after those of a batch are padding without
     * labels.
     *
     * @param shape of the batches
     * @param batches the number of slots: 2, or 3 if a step is enqueued before the step before it has ended
     * @param padding the id of padding tokens, at least 0
     * @throws IllegalArgumentException when {@code batches} is below 1 or above 1,024, or {@code padding} negative
     */
    public static UploadRing padded(Device device, BatchShape shape, int batches, int padding) {
        if (padding < 0) {
            throw new IllegalArgumentException("padding: expected the id of a token, at least 0, got " + padding);
        }
        return new UploadRing(device, shape, batches, padding, ContextParallel.none());
    }

    /**
     * The objects that describe a micro-batch, the same ones each step.
     *
     * <p>Threading: the device's thread.
     */
    private static final class Brought {
        private final CuSeqlens cuSeqlens = new CuSeqlens();
        private @Nullable Sequences sequences;
        /** One for each pair of objects that the scope has for ids and labels. */
        private final List<ModelInput> inputs = new ArrayList<>();
    }

    private UploadRing(Device device, BatchShape shape, int batches, int padding, ContextParallel ranks) {
        Checks.given("device", device);
        this.shape = Checks.given("shape", shape);
        Numbers.within("batches", batches, 1, MOST);
        inputs = new Brought[shape.microBatches()];
        for (int i = 0; i < inputs.length; i++) {
            inputs[i] = new Brought();
        }
        slots = new UploadSlot[batches];
        try (Opened opened = new Opened()) {
            copies = opened.add(device.openStream());
            for (int i = 0; i < batches; i++) {
                slots[i] = opened.add(new UploadSlot(device, copies, shape, padding, ranks));
            }
            opened.keep();
        }
    }

    /**
     * Enqueues the copy of a batch, which may be changed after return. Waits only if an earlier step still reads the device memory of the
     * slot.
     *
     * @throws IllegalArgumentException when the batch was made for another shape, is empty, or a micro-batch has fewer tokens than there
     *     are ranks that split them
     * @throws IllegalStateException when as many batches as the ring holds wait for {@link #next}, or this is closed
     */
    public void upload(Batch batch) {
        ensureOpen();
        if (!Checks.given("batch", batch).shape().equals(shape)) {
            throw new IllegalArgumentException("batch: expected one made for " + shape + ", got " + batch.shape());
        }
        if (batch.microBatches() == 0) {
            throw new IllegalArgumentException("batch: expected at least one sequence, got an empty one");
        }
        UploadSlot slot = slots[uploaded % slots.length];
        if (!slot.isFree()) {
            throw new IllegalStateException("all " + slots.length
                    + " batches of the ring wait to be computed; call next(scope) for each micro-batch of the oldest");
        }
        slot.copy(batch);
        uploaded++;
    }

    /**
     * Enqueues the copy of the next micro-batch into the scope's memory, on the scope's stream and after the upload.
     *
     * @param scope receives ids, labels and offsets
     * @return an object that is valid until the scope is restarted, also after further calls
     * @throws IllegalArgumentException when the scope is one of another device
     * @throws IllegalStateException when {@code next} was called for every micro-batch of every uploaded batch, or this is closed
     */
    public ModelInput next(Scope scope) {
        if (Checks.given("scope", scope).device() != device()) {
            throw new IllegalArgumentException(
                    "scope: expected one of " + device() + ", where the batches are, got one of " + scope.device()
                            + (scope.device().index() == device().index() ? ", opened another time" : ""));
        }
        UploadSlot slot = next();
        double share = slot.share();
        int following = slot.following();
        Brought one = inputs[slot.number()];
        Tensor both = slot.bringTokens(scope);
        Tensor ids = scope.view(both, 0, slot.tokens());
        Tensor labels = scope.view(both, shape.tokensPerMicroBatch(), slot.tokens());
        slot.bringOffsets(one.cuSeqlens, scope);
        Sequences described = describe(one);
        if (following == 0) {
            brought++;
        }
        return inputOf(one, ids, labels, described).set(share, following);
    }

    private static ModelInput inputOf(Brought one, Tensor ids, Tensor labels, Sequences sequences) {
        for (int i = 0; i < one.inputs.size(); i++) {
            if (one.inputs.get(i).isOf(ids, labels, sequences)) {
                return one.inputs.get(i);
            }
        }
        if (one.inputs.size() == MOST_INPUTS) {
            one.inputs.clear();
        }
        ModelInput made = new ModelInput(ids, labels, sequences);
        one.inputs.add(made);
        return made;
    }

    BatchShape shape() {
        return shape;
    }

    boolean isPadded() {
        return slots[0].isPadded();
    }

    /**
     * Enqueues the copy of the next batch to the addresses from which a graph reads it. The batch stays the next one until {@link
     * #advance}.
     */
    void bring(FixedInputs target) {
        next().bring(target);
    }

    /** Moves on to the batch after the next one, once the step over the next one was enqueued. */
    void advance() {
        next().advance();
        brought++;
    }

    Device device() {
        return copies.device();
    }

    /** Returns the slot of the batch that {@link #bring} copies next. */
    UploadSlot waiting() {
        return next();
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the upload ring of " + device() + " is closed");
        }
    }

    private UploadSlot next() {
        ensureOpen();
        if (brought == uploaded) {
            throw new IllegalStateException("no batch waits to be computed; call upload(batch) first");
        }
        return slots[brought % slots.length];
    }

    /** Returns the sequences of a micro-batch: one object, which is updated to the lengths. */
    private Sequences describe(Brought one) {
        Sequences present = one.sequences;
        if (present == null) {
            present = switch (shape.layout()) {
                case PACKED -> Sequences.packed(one.cuSeqlens);
                case PADDED -> Sequences.padded(QkvFormat.BSHD, one.cuSeqlens, shape.context());
            };
            one.sequences = present;
        }
        return present.follow();
    }

    /** Waits for the copies and frees the memory. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        Inside.state(copies).ensureCloses();
        closed = true;
        for (UploadSlot slot : slots) {
            slot.close();
        }
        copies.close();
    }
}
