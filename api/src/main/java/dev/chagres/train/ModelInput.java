package dev.chagres.train;

import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;

/**
 * What a model is given of a micro-batch: {@link UploadRing#next} fills it, the same object each time, and its tensors live in
 * the scope that was named there.
 *
 * <p>Threading: the device's thread.
 */
public final class ModelInput {
    private final Tensor ids;
    private final Tensor labels;
    private final Sequences sequences;
    private double share;
    private int following;

    ModelInput(Tensor ids, Tensor labels, Sequences sequences) {
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

    /** Returns whether this is the last micro-batch of its step. */
    public boolean isLast() {
        return following == 0;
    }

    /** Returns how many micro-batches of the same step come after this one. */
    public int following() {
        return following;
    }
}
