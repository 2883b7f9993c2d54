package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * What the workspace size of an attention call depends on, and that size. The last few are cached, so that TE is not asked again for each
 * layer, also where self-attention and cross-attention alternate.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionGeometry {
    /** A cache of the last few different geometries. */
    static final class Recent {
        private static final int MOST = 4;

        private final AttentionGeometry[] entries = new AttentionGeometry[MOST];
        private int next;

        Recent() {
            for (int i = 0; i < MOST; i++) {
                entries[i] = new AttentionGeometry();
            }
        }

        /** Returns the cached geometry of such a call, or null; {@code gradientType} is null for a forward call. */
        @Nullable
        AttentionGeometry find(AttentionProblem problem, AttentionTensors tensors, @Nullable DType gradientType) {
            for (AttentionGeometry entry : entries) {
                if (entry.isThatOf(problem, tensors, gradientType)) {
                    return entry;
                }
            }
            return null;
        }

        /** Replaces the oldest entry by this call and the workspace size that it needs. */
        AttentionGeometry remember(
                AttentionProblem problem, AttentionTensors tensors, @Nullable DType gradientType, long workspaceBytes) {
            AttentionGeometry entry = entries[next];
            next = (next + 1) % MOST;
            entry.set(problem, tensors, gradientType, workspaceBytes);
            return entry;
        }
    }

    private @Nullable AttentionProblem problem;
    private @Nullable DType dtype;
    /** The type of the output's gradient; null for a forward call. */
    private @Nullable DType gradientType;

    private long sequences;
    private final Sizes query = new Sizes();
    private final Sizes key = new Sizes();
    private long valueDim;
    private long queryLength;
    private long keyLength;
    /** 0 without bias. */
    private long biasSequences;
    /** 0 without bias. */
    private long biasHeads;

    private long workspaceBytes;

    /** The sizes of a tensor of heads. */
    private static final class Sizes {
        private long first;
        private long second;
        private long heads;
        private long headDim;

        boolean areThoseOf(Tensor tensor) {
            int rank = tensor.rank();
            return tensor.size(0) == first
                    && tensor.size(1) == second
                    && tensor.size(rank - 2) == heads
                    && tensor.size(rank - 1) == headDim;
        }

        void set(Tensor tensor) {
            first = tensor.size(0);
            second = tensor.size(1);
            heads = tensor.size(tensor.rank() - 2);
            headDim = tensor.size(tensor.rank() - 1);
        }
    }

    private boolean isThatOf(AttentionProblem newProblem, AttentionTensors tensors, @Nullable DType newGradientType) {
        Tensor value = tensors.value();
        return (newProblem == problem || newProblem.equals(problem))
                && tensors.query().dtype() == dtype
                && newGradientType == gradientType
                && tensors.sequences() == sequences
                && query.areThoseOf(tensors.query())
                && key.areThoseOf(tensors.key())
                && value.size(value.rank() - 1) == valueDim
                && tensors.queryLength() == queryLength
                && tensors.keyLength() == keyLength
                && biasSize(tensors, 0) == biasSequences
                && biasSize(tensors, 1) == biasHeads;
    }

    private void set(
            AttentionProblem newProblem, AttentionTensors tensors, @Nullable DType newGradientType, long bytes) {
        Tensor value = tensors.value();
        problem = newProblem;
        dtype = tensors.query().dtype();
        gradientType = newGradientType;
        sequences = tensors.sequences();
        query.set(tensors.query());
        key.set(tensors.key());
        valueDim = value.size(value.rank() - 1);
        queryLength = tensors.queryLength();
        keyLength = tensors.keyLength();
        biasSequences = biasSize(tensors, 0);
        biasHeads = biasSize(tensors, 1);
        workspaceBytes = bytes;
    }

    private static long biasSize(AttentionTensors tensors, int dimension) {
        Tensor bias = tensors.bias();
        return bias == null ? 0 : bias.size(dimension);
    }

    long workspaceBytes() {
        return workspaceBytes;
    }
}
