package dev.chagres.layer;

import dev.chagres.attention.Sequences;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.AttentionPlace;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import org.jspecify.annotations.Nullable;

/**
 * What one forward call of attention keeps for its backward call.
 *
 * <p>Threading: the device's thread.
 */
final class SavedAttention extends Saved {
    /** How query, key and value came, and so how their gradients go. */
    enum Form {
        SEPARATE("forward", "backward"),
        PACKED("forwardPacked", "backwardPacked");

        final String forward;
        final String backward;

        Form(String forward, String backward) {
            this.forward = forward;
            this.backward = backward;
        }
    }

    final AttentionTensors tensors = new AttentionTensors();
    final ScoreRules.Applied applied = new ScoreRules.Applied();
    final AttentionPlace place = new AttentionPlace();
    final Kept qkv = new Kept("the buffer of query, key and value");
    final Kept query = new Kept("the query");
    final Kept key = new Kept("the key");
    final Kept value = new Kept("the value");
    final Kept output = new Kept("the output");
    final Kept statistics = new Kept("the log-sum-exp");
    final Kept offsets = new Kept("the lengths of the queries");
    final Kept keyOffsets = new Kept("the lengths of the keys");
    final Kept starts = new Kept("the starts of the queries' sequences");
    final Kept keyStarts = new Kept("the starts of the keys' sequences");

    /** In eight bits; the output that the caller has is {@link #output}. */
    final Kept outputCopy = new Kept("the output in eight bits");

    /** The recipe's state of a call in eight bits; null of others. */
    @Nullable
    Quantizers quantizers;

    /** Of a call in eight bits: what its scales were, if they have changed since, is lost. */
    int scalesVersion;

    @Nullable
    AttentionProblem problem;

    @Nullable
    Sequences sequences;

    Form form = Form.SEPARATE;
    AttentionKernels kernels = AttentionKernels.FUSED;

    /** Notices when what forward read or wrote has lost its memory. */
    void check() {
        query.get();
        key.get();
        value.get();
        offsets.get();
        keyOffsets.get();
        if (!starts.isEmpty()) {
            starts.get();
        }
        if (!keyStarts.isEmpty()) {
            keyStarts.get();
        }
        applied.check();
        Quantizers present = quantizers;
        if (present == null) {
            return;
        }
        outputCopy.get();
        if (present.scalesVersion() != scalesVersion) {
            throw new IllegalStateException(
                    "the scales of attention in eight bits have changed since forward: the next step"
                            + " has begun, or a state was loaded; call backward before that");
        }
    }
}
