package dev.chagres.batch;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.optim.LossScaler;
import dev.chagres.pass.Pass;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.TensorLists;
import org.jspecify.annotations.Nullable;

/**
 * The tensors of a micro-batch that a model reads. {@link UploadRing#next} returns one with tensors in the given scope, valid as
 * long as they are; a {@link StepGraph} fills tensors at fixed addresses.
 *
 * <p>Threading: the device's thread.
 */
public final class ModelInput {
    private final Tensor ids;
    private final Tensor labels;
    private final Sequences sequences;
    private final @Nullable DeviceShare deviceShare;
    private double share;
    private int following;

    ModelInput(Tensor ids, Tensor labels, Sequences sequences) {
        this(ids, labels, sequences, null);
    }

    ModelInput(Tensor ids, Tensor labels, Sequences sequences, @Nullable DeviceShare deviceShare) {
        this.deviceShare = deviceShare;
        this.ids = ids;
        this.labels = labels;
        this.sequences = sequences;
    }

    boolean isOf(Tensor someIds, Tensor someLabels, Sequences someSequences) {
        return ids == someIds && labels == someLabels && sequences == someSequences;
    }

    ModelInput set(double newShare, int newFollowing) {
        share = newShare;
        following = newFollowing;
        return this;
    }

    /** Returns the tokens: INT32 [T]. */
    public Tensor ids() {
        return ids;
    }

    /** Returns for each token the id to predict there, or {@link Batch#IGNORED}: INT32 [T]. */
    public Tensor labels() {
        return labels;
    }

    /** Returns which token belongs to which sequence. */
    public Sequences sequences() {
        return sequences;
    }

    /** Returns the factor on the loss of this micro-batch, and so on its gradients: {@link Batch#share}. */
    public double share() {
        return share;
    }

    /**
     * Returns {@link #share} on the device, FLOAT32 [1], for a graph in which it changes from launch to launch.
     *
     * @throws IllegalStateException where this is not one of a {@link StepGraph}'s
     */
    public Tensor deviceShare() {
        return ofDevice().share;
    }

    /**
     * Enqueues {@link #deviceShare} times the loss scale, on the stream of {@code pass}, and returns it: FLOAT32 [1], for {@code
     * CrossEntropy.backward(1, factor, pass)} in FP16.
     *
     * @param scaler of the parameters that the step trains
     * @throws IllegalStateException where this is not one of a {@link StepGraph}'s
     */
    public Tensor deviceShare(LossScaler scaler, Pass pass) {
        return ofDevice().scaled(Checks.given("scaler", scaler), Checks.given("pass", pass).stream());
    }

    private DeviceShare ofDevice() {
        DeviceShare present = deviceShare;
        if (present == null) {
            throw new IllegalStateException(
                    "deviceShare: expected a micro-batch that StepGraph gives, got one of UploadRing.next; share() is"
                            + " the same number for the host");
        }
        return present;
    }

    /** Returns whether this is the last micro-batch of its step. */
    public boolean isLast() {
        return following == 0;
    }

    /** Returns the number of micro-batches of the same step after this one. */
    public int following() {
        return following;
    }

    /** The share of a micro-batch on the device, and its product with a loss scale. */
    static final class DeviceShare implements AutoCloseable {
        final Tensor share;
        private final Tensor scaled;
        /** The flag that the kernel sets for a share that is not finite, which never happens. */
        private final Tensor infinite;

        private final TensorLists lists;

        DeviceShare(Tensor share, Tensor scaled, Tensor infinite) {
            this.share = share;
            this.scaled = scaled;
            this.infinite = infinite;
            lists = TensorLists.of(new Tensor[] {share}, new Tensor[] {scaled});
        }

        /** Enqueues the product with the present scale of {@code scaler}, and returns it. */
        Tensor scaled(LossScaler scaler, Stream stream) {
            MultiTensor.scaleTensor(infinite, lists, scaler.scale(), stream);
            return scaled;
        }

        @Override
        public void close() {
            lists.close();
        }
    }
}
