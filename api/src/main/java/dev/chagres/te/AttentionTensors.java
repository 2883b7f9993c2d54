package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The tensors of one attention call, filled again by the next call.
 *
 * <p>Query and output are [T, h, d] packed (THD), [B, S, h, d] (BSHD) or [S, B, h, d] (SBHD). Key and value may have fewer
 * heads, a divisor of the query's, and other lengths; the value and the output may have heads of another size where no
 * buffer is shared. Inside one buffer, as the problem's layout may say, each tensor is a view from its first element on,
 * shaped so. The statistics are FLOAT32 [T, h, 1] packed, else [B, h, S, 1], S being the queries' length.
 *
 * <p>{@link FusedAttention} adds a bias [1 or B, 1 or h, S, S'] of the query's type to scores where the problem says so, and has an
 * offset FLOAT32 [h] in the sum of its softmax.
 *
 * <p>Lengths are INT32 [B + 1], cumulative from 0; packed, they are token offsets too. Their contents are trusted: no
 * sequence may be longer than is said, none end behind the tokens. A padding mask reads them, and so do packed layouts.
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
    private final AttentionMemory memory = new AttentionMemory();

    /** Names no tensor yet. */
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
     * Sets where each packed sequence starts, where there are gaps between them: gaps belong to the sequence before. A length
     * that no sequence exceeds counts the gap, too.
     *
     * @param queries INT32 [B + 1], as the lengths and nowhere closer than they; null: sequences lie side by side
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

    /** Sets the gradient of the output, like it, which backward reads. */
    public AttentionTensors outputGradient(Tensor tensor) {
        outputGradient = tensor;
        return this;
    }

    /** Sets the gradient of the query, like it and lying as it does, which backward writes. */
    public AttentionTensors queryGradient(Tensor tensor) {
        queryGradient = tensor;
        return this;
    }

    /** Sets the gradient of the key, like it and lying as it does, which backward writes. */
    public AttentionTensors keyGradient(Tensor tensor) {
        keyGradient = tensor;
        return this;
    }

    /** Sets the gradient of the value, like it and lying as it does, which backward writes. */
    public AttentionTensors valueGradient(Tensor tensor) {
        valueGradient = tensor;
        return this;
    }

    /**
     * Sets what scales the tensors in eight bits; null where they are of 16 or 32 bits. Then query, key, value and output are
     * FLOAT8_E4M3, their gradients FLOAT8_E5M2 or FLOAT8_E4M3. The calls of {@link FusedAttention} take it.
     */
    public AttentionTensors scales(@Nullable AttentionScales newScales) {
        scales = newScales;
        return this;
    }

    /** Sets the bias of a problem that has one as a tensor, [1 or B, 1 or h, S, S'] of the query's type; null of others. */
    public AttentionTensors bias(@Nullable Tensor tensor) {
        bias = tensor;
        return this;
    }

    /** Sets the gradient of the bias, like it, which backward writes whole; null where there is no bias. */
    public AttentionTensors biasGradient(@Nullable Tensor tensor) {
        biasGradient = tensor;
        return this;
    }

    /**
     * Sets the offset of a softmax that is not {@link SoftmaxType#VANILLA}, FLOAT32 [h]: the sinks of {@link SoftmaxType#LEARNABLE},
     * zeros of {@link SoftmaxType#OFF_BY_ONE}; null of a vanilla one.
     */
    public AttentionTensors softmaxOffset(@Nullable Tensor tensor) {
        softmaxOffset = tensor;
        return this;
    }

    /** Sets the gradient of the offset of the softmax, like it, which backward writes; null where there is no offset. */
    public AttentionTensors softmaxOffsetGradient(@Nullable Tensor tensor) {
        softmaxOffsetGradient = tensor;
        return this;
    }

    /** Returns what scales the tensors in eight bits, or null. */
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

    /** Returns the padded length of the queries or, packed, what no length exceeds. */
    public long queryLength() {
        return queryLength;
    }

    /** Returns the cumulative lengths of keys and values. */
    public Tensor keyLengths() {
        return given("keyLengths", keyLengths);
    }

    /** Returns the padded length of keys and values or, packed, what no length exceeds. */
    public long keyLength() {
        return keyLength;
    }

    /** Returns where the packed sequences of the queries start, or null: they lie side by side. */
    public @Nullable Tensor queryStarts() {
        return queryStarts;
    }

    /** Returns where the packed sequences of the keys start, or null: they lie side by side. */
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
     * Checks that the tensors which forward takes fit each other, the problem and the stream.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when one was not given, or is closed
     */
    public void checkForward(AttentionProblem problem, Stream stream) {
        AttentionChecks.forward(problem, this, memory, stream);
    }

    /**
     * Checks that the tensors which backward takes fit each other, the problem and the stream.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when one was not given, or is closed
     */
    public void checkBackward(AttentionProblem problem, Stream stream) {
        AttentionChecks.backward(problem, this, memory, stream);
    }

    /**
     * Checks that {@code tensor}, which a call writes too, shares no memory with those that the last check looked at.
     *
     * @throws IllegalArgumentException when it does
     */
    public void checkApart(String argument, Tensor tensor) {
        memory.written(argument, tensor, Checks.given(argument, tensor).byteSize());
    }

    /**
     * Checks that {@code tensor}, which a call reads too, shares no memory with what the last check said to be written.
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
