package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;

/**
 * Checks of attention's inputs.
 *
 * <p>Threading: the device's thread.
 */
record AttentionInputs(String name, AttentionConfig config) {
    /** Returns the columns of all query heads. */
    long width() {
        return (long) config.heads() * config.headDim();
    }

    /** Returns the sequences, once they have tokens and their memory is still there. */
    static Sequences checked(Sequences sequences) {
        sequences.check();
        if (sequences.tokens() == 0) {
            throw new IllegalArgumentException(
                    "sequences: expected at least one token, got " + sequences + "; leave an empty batch out");
        }
        return sequences;
    }

    void check(Tensor q, Tensor k, Tensor v, Sequences sequences, Stream stream) {
        checkHeads("q", Checks.floats(stream, "q", q), config.heads(), sequences);
        checkHeads("k", Checks.floats(stream, "k", k), config.keyHeads(), sequences.keys());
        if (k.count() == 0) {
            throw new IllegalArgumentException("k: expected at least one token, got " + Checks.describe(k));
        }
        Checks.like(stream, "v", v, k);
        if (k.dtype() != q.dtype()) {
            throw new IllegalArgumentException("k: expected " + q.dtype() + " as q, got " + Checks.describe(k));
        }
        Checks.aligned("q", q);
        Checks.aligned("k", k);
        Checks.aligned("v", v);
    }

    void checkPacked(Tensor qkv, Sequences sequences, Stream stream) {
        Checks.floats(stream, "qkv", qkv);
        Checks.matrix(stream, "qkv", qkv, qkv.dtype(), 3 * width());
        if (config.keyHeads() != config.heads()) {
            throw new IllegalArgumentException(
                    "qkv: one buffer holds as many heads of query, key and value, but " + name
                            + " has " + config.heads() + " query and " + config.keyHeads()
                            + " key heads; call forward(q, k, v, pass)");
        }
        sequences.checkTokens("qkv", qkv, qkv.size(0));
        Checks.aligned("qkv", qkv);
    }

    static void checkGradients(SavedAttention record, Tensor dO, Tensor dq, Tensor dk, Tensor dv, Stream stream) {
        Checks.like(stream, "dO", dO, record.output.get());
        gradient(stream, "dq", dq, record.query.get(), dO);
        gradient(stream, "dk", dk, record.key.get(), dO);
        gradient(stream, "dv", dv, record.value.get(), dO);
        read(CallMemory.of(stream), record, dO)
                .written("dv", dv)
                .written("dk", dk)
                .written("dq", dq);
        Checks.aligned("dq", dq);
        Checks.aligned("dk", dk);
        Checks.aligned("dv", dv);
        Checks.aligned("dO", dO);
    }

    /** The tensor itself may have been cast to eight bits, the gradient is like the output's. */
    private static void gradient(Stream stream, String argument, Tensor gradient, Tensor model, Tensor dO) {
        if (model.dtype().isFloat8()) {
            Checks.typed(stream, argument, Checks.shaped(stream, argument, gradient, model), dO.dtype());
        } else {
            Checks.like(stream, argument, gradient, model);
        }
    }

    void checkPackedGradient(SavedAttention record, Tensor dO, Tensor dqkv, Stream stream) {
        long width = width();
        Tensor output = record.output.get();
        long tokens = output.count() / width;
        Checks.matrix(stream, "dO", dO, output.dtype(), tokens, width);
        Checks.matrix(stream, "dqkv", dqkv, output.dtype(), tokens, 3 * width);
        CallMemory memory = CallMemory.of(stream).read("qkv", record.qkv.get()); // It is named before its parts.
        read(memory, record, dO).written("dqkv", dqkv);
        Checks.aligned("dqkv", dqkv);
        Checks.aligned("dO", dO);
    }

    /** Records what backward reads. */
    private static CallMemory read(CallMemory memory, SavedAttention record, Tensor dO) {
        return memory.read("dO", dO)
                .read("the query", record.query.get())
                .read("the key", record.key.get())
                .read("the value", record.value.get())
                .read("the output", record.output.get());
    }

    private void checkHeads(String argument, Tensor tensor, int heads, Sequences sequences) {
        int rank = tensor.rank();
        if (!sequences.fits(tensor) || tensor.size(rank - 2) != heads || tensor.size(rank - 1) != config.headDim()) {
            throw new IllegalArgumentException(argument + ": expected " + heads + " heads of " + config.headDim()
                    + " over " + sequences + ", got " + Checks.describe(tensor));
        }
    }

    /** Returns rows as tokens and heads; inside a packed buffer TE takes the strides from the layout. */
    Tensor shaped(Scope scope, Tensor matrix, long offset, Sequences sequences) {
        return shaped(scope, matrix, offset, config.heads(), config.headDim(), sequences);
    }

    /** Returns the same with another number of heads. */
    static Tensor shaped(Scope scope, Tensor matrix, long offset, int heads, int headDim, Sequences sequences) {
        return switch (sequences.format()) {
            case THD -> scope.view(matrix, offset, sequences.tokens(), heads, headDim);
            case BSHD -> scope.view(matrix, offset, sequences.batch(), sequences.length(), heads, headDim);
            case SBHD -> scope.view(matrix, offset, sequences.length(), sequences.batch(), heads, headDim);
        };
    }
}
