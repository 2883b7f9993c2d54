package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The tensors of one attention call; the object is reused for the next call.
 *
 * <p>Query and output are [T, h, d] packed (THD), [B, S, h, d] (BSHD) or [S, B, h, d] (SBHD). Key and value may have fewer
 * heads, a divisor of the query's, and other lengths; value and output may have heads of another size unless a buffer is shared. In a
 * shared buffer, which the problem's layout may ask for, each tensor is a view of that shape that begins at its first element. The
 * statistics are FLOAT32 [T, h, 1] packed, else [B, h, S, 1], S being the queries' length.
 *
 * <p>If the problem says so, {@link FusedAttention} adds a bias [1 or B, 1 or h, S, S'] of the query's type to scores, and an offset
 * FLOAT32 [h] in the denominator of its softmax.
 *
 * <p>Lengths are INT32 [B + 1], cumulative from 0; packed, they are token offsets too. Their contents are trusted: no sequence may exceed
 * the given longest length, or end behind the tokens. A padding mask reads them, and so do packed layouts.
 *
 * <p>Threading: the device's thread.
 */
public final class AttentionTensors {
    private @Nullable Tensor query;
    private @Nullable Tensor key;
    private @Nullable Tensor value;
    private @Nullable Tensor output;
    private @Nullable Tensor statistics;
    private @Nullable Tensor queryLengths;
    private @Nullable Tensor keyLengths;
    private long queryLength;
    private long keyLength;
    private @Nullable Tensor queryStarts;
    private @Nullable Tensor keyStarts;
    private @Nullable Tensor rngState;
    private @Nullable Tensor outputGradient;
    private @Nullable Tensor queryGradient;
    private @Nullable Tensor keyGradient;
    private @Nullable Tensor valueGradient;
    private @Nullable AttentionScales scales;
    private @Nullable Tensor bias;
    private @Nullable Tensor biasGradient;
    private @Nullable Tensor softmaxOffset;
    private @Nullable Tensor softmaxOffsetGradient;
    private final CallMemory memory = new CallMemory();

    /** Makes an object without tensors. */
    public AttentionTensors() {}

    /** Sets the query. */
    public AttentionTensors query(Tensor tensor) {
        query = tensor;
        return this;
    }

    /** Sets the key. */
    public AttentionTensors key(Tensor tensor) {
        key = tensor;
        return this;
    }

    /** Sets the value. */
    public AttentionTensors value(Tensor tensor) {
        value = tensor;
        return this;
    }

    /** Sets the output: forward writes it, backward reads it. */
    public AttentionTensors output(Tensor tensor) {
        output = tensor;
        return this;
    }

    /** Sets the log-sum-exp of each query and head: forward writes it, backward reads it. */
    public AttentionTensors statistics(Tensor tensor) {
        statistics = tensor;
        return this;
    }

    /**
     * Sets the lengths of the queries.
     *
     * @param cumulative INT32 [B + 1]
     * @param longest padded length S, or, packed, a length that no sequence exceeds
     */
    public AttentionTensors queryLengths(Tensor cumulative, long longest) {
        queryLengths = cumulative;
        queryLength = longest;
        return this;
    }

    /** Sets the lengths of keys and values, as {@link #queryLengths(Tensor, long)} those of the queries. */
    public AttentionTensors keyLengths(Tensor cumulative, long longest) {
        keyLengths = cumulative;
        keyLength = longest;
        return this;
    }

    /**
     * Sets where each packed sequence starts if there are gaps between them. A gap belongs to the sequence before it; the longest length
     * counts the gap, too.
     *
     * @param queries INT32 [B + 1], no closer together than the cumulative lengths; null: no gaps
     * @param keys the same of keys and values
     */
    public AttentionTensors starts(@Nullable Tensor queries, @Nullable Tensor keys) {
        queryStarts = queries;
        keyStarts = keys;
        return this;
    }

    /** Sets the random state of dropout, INT64 [2]: seed and offset; null where nothing is dropped. */
    public AttentionTensors rngState(@Nullable Tensor tensor) {
        rngState = tensor;
        return this;
    }

    /** Sets the gradient of the output, like the output, which backward reads. */
    public AttentionTensors outputGradient(Tensor tensor) {
        outputGradient = tensor;
        return this;
    }

    /** Sets the gradient of the query, with its shape and layout, which backward writes. */
    public AttentionTensors queryGradient(Tensor tensor) {
        queryGradient = tensor;
        return this;
    }

    /** Sets the gradient of the key, with its shape and layout, which backward writes. */
    public AttentionTensors keyGradient(Tensor tensor) {
        keyGradient = tensor;
        return this;
    }

    /** Sets the gradient of the value, with its shape and layout, which backward writes. */
    public AttentionTensors valueGradient(Tensor tensor) {
        valueGradient = tensor;
        return this;
    }

    /**
     * Sets the scales of tensors in eight bits, for {@link FusedAttention}; null for tensors of 16 or 32 bits. With scales query, key,
     * value and output are FLOAT8_E4M3, their gradients FLOAT8_E5M2 or FLOAT8_E4M3.
     */
    public AttentionTensors scales(@Nullable AttentionScales newScales) {
        scales = newScales;
        return this;
    }

    /** Sets the bias, [1 or B, 1 or h, S, S'] of the query's type; null if the problem has no bias tensor. */
    public AttentionTensors bias(@Nullable Tensor tensor) {
        bias = tensor;
        return this;
    }

    /** Sets the gradient of the bias, like the bias, of which backward writes every element; null without bias. */
    public AttentionTensors biasGradient(@Nullable Tensor tensor) {
        biasGradient = tensor;
        return this;
    }

    /**
     * Sets the offset of the softmax, FLOAT32 [h]: the sinks for {@link SoftmaxType#LEARNABLE}, zeros for {@link SoftmaxType#OFF_BY_ONE};
     * null for {@link SoftmaxType#VANILLA}.
     */
    public AttentionTensors softmaxOffset(@Nullable Tensor tensor) {
        softmaxOffset = tensor;
        return this;
    }

    /**
     * Sets the gradient of the softmax's offset, like the offset, which backward writes; null without offset. With dropout cuDNN 9.19 writes (1 -
     * probability) times the gradient.
     */
    public AttentionTensors softmaxOffsetGradient(@Nullable Tensor tensor) {
        softmaxOffsetGradient = tensor;
        return this;
    }

    /** Returns the scales of tensors in eight bits, or null. */
    public @Nullable AttentionScales scales() {
        return scales;
    }

    /** Returns the bias, or null. */
    public @Nullable Tensor bias() {
        return bias;
    }

    /** Returns the gradient of the bias, or null. */
    public @Nullable Tensor biasGradient() {
        return biasGradient;
    }

    /** Returns the offset of the softmax, or null. */
    public @Nullable Tensor softmaxOffset() {
        return softmaxOffset;
    }

    /** Returns the gradient of the offset of the softmax, or null. */
    public @Nullable Tensor softmaxOffsetGradient() {
        return softmaxOffsetGradient;
    }

    /** Returns the query. */
    public Tensor query() {
        return given("query", query);
    }

    /** Returns the key. */
    public Tensor key() {
        return given("key", key);
    }

    /** Returns the value. */
    public Tensor value() {
        return given("value", value);
    }

    /** Returns the output. */
    public Tensor output() {
        return given("output", output);
    }

    /** Returns the log-sum-exp. */
    public Tensor statistics() {
        return given("statistics", statistics);
    }

    /** Returns the cumulative lengths of the queries. */
    public Tensor queryLengths() {
        return given("queryLengths", queryLengths);
    }

    /** Returns the padded length of the queries; packed, a length that no sequence exceeds. */
    public long queryLength() {
        return queryLength;
    }

    /** Returns the cumulative lengths of keys and values. */
    public Tensor keyLengths() {
        return given("keyLengths", keyLengths);
    }

    /** Returns the padded length of keys and values; packed, a length that no sequence exceeds. */
    public long keyLength() {
        return keyLength;
    }

    /** Returns where the packed sequences of the queries start; null: there are no gaps. */
    public @Nullable Tensor queryStarts() {
        return queryStarts;
    }

    /** Returns where the packed sequences of the keys start; null: there are no gaps. */
    public @Nullable Tensor keyStarts() {
        return keyStarts;
    }

    /** Returns the random state, or null. */
    public @Nullable Tensor rngState() {
        return rngState;
    }

    /** Returns the gradient of the output. */
    public Tensor outputGradient() {
        return given("outputGradient", outputGradient);
    }

    /** Returns the gradient of the query. */
    public Tensor queryGradient() {
        return given("queryGradient", queryGradient);
    }

    /** Returns the gradient of the key. */
    public Tensor keyGradient() {
        return given("keyGradient", keyGradient);
    }

    /** Returns the gradient of the value. */
    public Tensor valueGradient() {
        return given("valueGradient", valueGradient);
    }

    /** Returns the number of sequences. */
    public long sequences() {
        return queryLengths().count() - 1;
    }

    /**
     * Checks that forward's tensors fit each other, the problem and the stream.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when one was not given, or is closed
     */
    public void checkForward(AttentionProblem problem, Stream stream) {
        AttentionChecks.forward(problem, this, memory, stream);
    }

    /**
     * Checks that backward's tensors fit each other, the problem and the stream.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when one was not given, or is closed
     */
    public void checkBackward(AttentionProblem problem, Stream stream) {
        AttentionChecks.backward(problem, this, memory, stream);
    }

    /**
     * Checks that {@code tensor}, which the call also writes, shares no memory with the tensors of the last check.
     *
     * @throws IllegalArgumentException when it does
     */
    public void checkApart(String argument, Tensor tensor) {
        memory.written(argument, tensor, Checks.given(argument, tensor).byteSize());
    }

    /**
     * Checks that {@code tensor}, which the call also reads, shares no memory with what the last check recorded as written.
     *
     * @throws IllegalArgumentException when it does
     */
    public void checkRead(String argument, Tensor tensor) {
        memory.readApart(argument, Checks.given(argument, tensor));
    }

    private static Tensor given(String name, @Nullable Tensor tensor) {
        if (tensor == null) {
            throw new IllegalStateException(name + ": expected a tensor, got none; call " + name + "(...) before");
        }
        return tensor;
    }
}
