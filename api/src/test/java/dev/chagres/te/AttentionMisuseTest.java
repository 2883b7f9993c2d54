package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.bindings.TransformerEngineException;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what attention refuses: problems, sizes and tensors. */
@Tag("L0")
@Tag("L1")
class AttentionMisuseTest {
    private static final String SHARED = "'s; it is written to while that is read or written";
    private static final AttentionProblem PACKED =
            AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f).withMask(MaskType.PADDING);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static Tensor heads(long... sizes) {
        return of(DType.BFLOAT16, sizes);
    }

    /** Eight packed tokens of two sequences, two heads of 16. */
    private static AttentionTensors good() {
        return new AttentionTensors()
                .query(heads(8, 2, 16))
                .key(heads(8, 2, 16))
                .value(heads(8, 2, 16))
                .output(heads(8, 2, 16))
                .statistics(of(DType.FLOAT32, 8, 2, 1))
                .queryLengths(open.ints(0, 3, 8), 5)
                .keyLengths(open.ints(0, 3, 8), 5)
                .outputGradient(heads(8, 2, 16))
                .queryGradient(heads(8, 2, 16))
                .keyGradient(heads(8, 2, 16))
                .valueGradient(heads(8, 2, 16));
    }

    private static void refused(String text, AttentionProblem problem, AttentionTensors tensors) {
        assertThrown(
                IllegalArgumentException.class, text, () -> FusedAttention.forward(problem, tensors, open.stream()));
    }

    private static void refusedBackward(String text, AttentionProblem problem, AttentionTensors tensors) {
        assertThrown(
                IllegalArgumentException.class, text, () -> FusedAttention.backward(problem, tensors, open.stream()));
    }

    @Test
    void queriesAndKeys() {
        refused("query: expected [T, h, d], got BFLOAT16[8, 32]", PACKED, good().query(heads(8, 32)));
        refused(
                "key: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[8, 2, 16]",
                PACKED,
                good().key(of(DType.INT32, 8, 2, 16)));
        refused(
                "key: expected heads of 16 BFLOAT16, in a number that divides the query's 2, got FLOAT16[8, 2, 16]",
                PACKED,
                good().key(of(DType.FLOAT16, 8, 2, 16)));
        refused(
                "key: expected heads of 16 BFLOAT16, in a number that divides the query's 2, got BFLOAT16[8, 3, 16]",
                PACKED,
                good().key(heads(8, 3, 16)));
        refused(
                "key: expected heads of 16 BFLOAT16, in a number that divides the query's 2, got BFLOAT16[8, 2, 8]",
                PACKED,
                good().key(heads(8, 2, 8)));
        refused(
                "value: expected BFLOAT16[8, 2, 16], the last size aside, got BFLOAT16[7, 2, 16]",
                PACKED,
                good().value(heads(7, 2, 16)));
        refused("output: expected BFLOAT16[8, 2, 16], got BFLOAT16[8, 2, 8]", PACKED, good().output(heads(8, 2, 8)));
        refused(
                "output: expected BFLOAT16[8, 2, 16] with heads of 24, got BFLOAT16[8, 2, 16]",
                PACKED,
                good().value(heads(8, 2, 24)));
        refused(
                "statistics: expected FLOAT32[8, 2, 1], got FLOAT32[8, 2]",
                PACKED,
                good().statistics(of(DType.FLOAT32, 8, 2)));
        Tensor unaligned = open.scope().view(heads(300), 3, 8, 2, 16);
        refused(
                "query: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view"
                        + " that does not; copy it into a tensor",
                PACKED,
                good().query(unaligned));
    }

    /** cuDNN is told of no gaps. */
    @Test
    void gaps() {
        String text = "starts: expected none, for sequences follow each other without gaps here; call"
                + " dev.chagres.ops.Attention";
        Tensor starts = open.ints(0, 3, 8);
        refused(text, PACKED, good().starts(starts, null));
        refusedBackward(text, PACKED, good().starts(starts, starts));
    }

    @Test
    void lengths() {
        refused(
                "queryLengths: expected INT32[B + 1], got INT64[3]",
                PACKED,
                good().queryLengths(of(DType.INT64, 3), 5));
        refused("keyLengths: expected INT32[3], got INT32[2]", PACKED, good().keyLengths(open.ints(0, 8), 5));
        refused(
                "queryLengths: expected a longest length from 1 to 2147483647, got 0",
                PACKED,
                good().queryLengths(open.ints(0, 3, 8), 0));
        AttentionProblem dense = PACKED.withLayout(QkvLayout.BSHD_BSHD_BSHD);
        AttentionTensors tensors = good().query(heads(2, 4, 2, 16))
                .key(heads(2, 4, 2, 16))
                .value(heads(2, 4, 2, 16))
                .output(heads(2, 4, 2, 16))
                .statistics(of(DType.FLOAT32, 2, 2, 4, 1));
        refused(
                "queryLengths: expected the padded length of the query, 4, got 5",
                dense,
                tensors.queryLengths(open.ints(0, 3, 7), 5));
        refused(
                "query: expected [B, S, h, d] with B 1, as many as there are lengths, got BFLOAT16[2, 4, 2, 16]",
                dense,
                tensors.queryLengths(open.ints(0, 3), 4).keyLengths(open.ints(0, 3), 4));
        refused(
                "query: expected [S, B, h, d] with B 3, as many as there are lengths, got BFLOAT16[2, 4, 2, 16]",
                dense.withLayout(QkvLayout.SBHD_SBHD_SBHD),
                tensors.queryLengths(open.ints(0, 1, 2, 3), 2).keyLengths(open.ints(0, 1, 2, 3), 2));
    }

    @Test
    void packedBuffers() {
        AttentionProblem one = PACKED.withLayout(QkvLayout.T3HD);
        Tensor buffer = heads(8 * 3 * 32);
        Tensor query = open.scope().view(buffer, 0, 8, 2, 16);
        Tensor key = open.scope().view(buffer, 32, 8, 2, 16);
        Tensor value = open.scope().view(buffer, 64, 8, 2, 16);
        refused(
                "value: expected a view that begins 32 elements behind key, for T3HD is one buffer, got one that begins 0"
                        + " bytes behind it",
                one,
                good().query(query).key(key).value(key));
        refused(
                "key: expected BFLOAT16[8, 2, 16], for T3HD is one buffer, got BFLOAT16[8, 1, 16]",
                one,
                good().query(query).key(open.scope().view(buffer, 32, 8, 1, 16)).value(value));
        Tensor small = heads(8 * 2 * 32);
        refused(
                "query: expected a view of a buffer that holds 768 elements from there on, as T3HD has them, got"
                        + " BFLOAT16[8, 2, 16] of BFLOAT16[512]",
                one,
                good().query(open.scope().view(small, 0, 8, 2, 16))
                        .key(open.scope().view(small, 32, 8, 2, 16))
                        .value(open.scope().view(small, 64, 8, 2, 16)));
        AttentionProblem two = PACKED.withLayout(QkvLayout.THD_T2HD);
        refused(
                "value: expected BFLOAT16[8, 2, 16], got BFLOAT16[8, 2, 8]",
                two,
                good().key(query).value(open.scope().view(buffer, 32, 8, 2, 8)));
        refused(
                "output: expected memory of its own, got some of query" + SHARED,
                one,
                good().query(query).key(key).value(value).output(open.scope().view(buffer, 512, 8, 2, 16)));
        refusedBackward(
                "keyGradient: expected a view that begins 32 elements behind queryGradient, for T3HD is one buffer, got one"
                        + " that begins 128 bytes behind it",
                one,
                good().query(query).key(key).value(value).queryGradient(query).keyGradient(value));
        refusedBackward(
                "queryGradient: expected memory of its own, got some of query" + SHARED,
                one,
                good().query(query)
                        .key(key)
                        .value(value)
                        .queryGradient(query)
                        .keyGradient(key)
                        .valueGradient(value));
    }

    @Test
    void sharedMemory() {
        AttentionTensors in = good();
        refused("output: expected memory of its own, got some of value" + SHARED, PACKED, in.output(in.value()));
        AttentionTensors bytes = good();
        Tensor both = heads(8 * 2 * 16 * 2);
        Tensor half = open.scope().view(both, 0, 8, 2, 16);
        refusedBackward(
                "keyGradient: expected memory of its own, got some of queryGradient" + SHARED,
                PACKED,
                bytes.queryGradient(half).keyGradient(open.scope().view(both, 128, 8, 2, 16)));
        AttentionTensors gradient = good();
        refusedBackward(
                "valueGradient: expected memory of its own, got some of outputGradient" + SHARED,
                PACKED,
                gradient.valueGradient(gradient.outputGradient()));
        AttentionTensors output = good();
        refusedBackward(
                "queryGradient: expected memory of its own, got some of output" + SHARED,
                PACKED,
                output.queryGradient(output.output()));
    }

    @Test
    void gradients() {
        refusedBackward(
                "outputGradient: expected BFLOAT16[8, 2, 16], got FLOAT32[8, 2, 16]",
                PACKED,
                good().outputGradient(of(DType.FLOAT32, 8, 2, 16)));
        refusedBackward(
                "keyGradient: expected BFLOAT16[8, 2, 16], got BFLOAT16[8, 1, 16]",
                PACKED,
                good().keyGradient(heads(8, 1, 16)));
    }

    @Test
    void randomStates() {
        refused(
                "rngState: expected INT64[2], for the problem drops weights with probability 0.5, got none",
                PACKED.withDropout(0.5f),
                good());
        refused("rngState: expected INT64[2], got INT64[3]", PACKED, good().rngState(of(DType.INT64, 3)));
        assertThrown(
                IllegalArgumentException.class,
                "draws: expected at least 0, got -1",
                () -> FusedAttention.extractSeedAndOffset(
                        open.longs(0, 0), open.longs(1), open.longs(2), -1, open.stream()));
        Tensor state = open.longs(0, 0);
        assertThrown(
                IllegalArgumentException.class,
                "rngState: expected memory of its own, got some of seed" + SHARED,
                () -> FusedAttention.extractSeedAndOffset(
                        state, open.scope().view(state, 0, 1), open.longs(2), 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "rngState: expected INT64[2], got INT64[1]",
                () -> FusedAttention.extractSeedAndOffset(open.longs(1), 0, 0, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "seed: expected INT64[1], got INT64[2]",
                () -> FusedAttention.populateRngState(state, open.longs(0, 1), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "rngState: expected INT64[2], got INT64[1]",
                () -> FusedAttention.populateRngState(open.longs(0), open.longs(1), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "rngState: expected memory of its own, got some of seed" + SHARED,
                () -> FusedAttention.populateRngState(state, open.scope().view(state, 0, 1), open.stream()));
    }

    @Test
    void whatWasNotGiven() {
        AttentionTensors none = new AttentionTensors();
        assertThrown(
                IllegalStateException.class,
                "query: expected a tensor, got none; call query(...) before",
                () -> FusedAttention.forward(PACKED, none, open.stream()));
        AttentionTensors forwardAlone = new AttentionTensors()
                .query(heads(8, 2, 16))
                .key(heads(8, 2, 16))
                .value(heads(8, 2, 16))
                .output(heads(8, 2, 16))
                .statistics(of(DType.FLOAT32, 8, 2, 1))
                .queryLengths(open.ints(0, 8), 8)
                .keyLengths(open.ints(0, 8), 8);
        assertThrown(
                IllegalStateException.class,
                "outputGradient: expected a tensor, got none; call outputGradient(...) before",
                () -> FusedAttention.backward(PACKED, forwardAlone, open.stream()));
    }

    /** What only the library knows it says itself, when it is called. */
    @Test
    void whatTheLibraryRefuses() {
        AttentionProblem unmasked = PACKED.withMask(MaskType.NO_MASK);
        TransformerEngineException refusal = assertThrows(
                TransformerEngineException.class, () -> FusedAttention.forward(unmasked, good(), open.stream()));
        assertTrue(
                refusal.getMessage().startsWith("Transformer Engine: te_fused_attn_fwd_v2 returned TE_ERROR (1)"),
                refusal.getMessage());
    }
}
