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
    /** The form of query, key and value, and so of their gradients. */
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

    /** The output in eight bits; the caller's output is {@link #output}. */
    final Kept outputCopy = new Kept("the output in eight bits");

    /** The quantizers of a call in eight bits; null for other calls. */
    @Nullable
    Quantizers quantizers;

    /** The version of the scales of a call in eight bits: backward is refused if they have changed since. */
    int scalesVersion;

    @Nullable
    AttentionProblem problem;

    @Nullable
    Sequences sequences;

    Form form = Form.SEPARATE;
    AttentionKernels kernels = AttentionKernels.FUSED;

    /** Throws if a tensor that forward read or wrote has lost its memory. */
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
