package dev.chagres.layer;

import dev.chagres.attention.Sequences;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.AttentionPlace;
import dev.chagres.pass.SavedContext;
import dev.chagres.pass.SavedTensor;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import org.jspecify.annotations.Nullable;

/**
 * What one forward call of attention keeps for its backward call.
 *
 * <p>Threading: the device's thread.
 */
final class SavedAttention extends SavedContext {
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
    final ScoreMods.Applied applied = new ScoreMods.Applied();
    final AttentionPlace place = new AttentionPlace();
    final SavedTensor qkv = new SavedTensor("the buffer of query, key and value");
    final SavedTensor query = new SavedTensor("the query");
    final SavedTensor key = new SavedTensor("the key");
    final SavedTensor value = new SavedTensor("the value");
    final SavedTensor output = new SavedTensor("the output");
    final SavedTensor statistics = new SavedTensor("the log-sum-exp");
    final SavedTensor offsets = new SavedTensor("the lengths of the queries");
    final SavedTensor keyOffsets = new SavedTensor("the lengths of the keys");
    final SavedTensor starts = new SavedTensor("the starts of the queries' sequences");
    final SavedTensor keyStarts = new SavedTensor("the starts of the keys' sequences");

    /** The output in eight bits; the caller's output is {@link #output}. */
    final SavedTensor outputCopy = new SavedTensor("the output in eight bits");

    /** The quantizers of a call in eight bits; null for other calls. */
    @Nullable
    Quantizers quantizers;

    /** The version of the scales of a call in eight bits: backward is refused if they have changed since. */
    int scalesVersion;

    @Nullable
    AttentionProblem problem;

    @Nullable
    Sequences sequences;

    /** The same as the kernels were told: dense where all packed sequences are equally long. */
    @Nullable
    Sequences attended;

    Form form = Form.SEPARATE;
    AttentionKernels kernels = AttentionKernels.FUSED;

    /** Whether a graph of cuDNN's has computed what our own kernels would have. */
    boolean capped;

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
