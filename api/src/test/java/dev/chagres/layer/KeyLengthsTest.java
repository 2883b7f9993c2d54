package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.attention.Sequences.Padding;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import dev.chagres.witness.AttentionDropoutWitness;
import dev.chagres.witness.AttentionWitness;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Attention over keys of other lengths than the queries', against double precision: whatever kernels compute it. */
@Tag("L0")
@Tag("L1")
class KeyLengthsTest {
    private static final int HEADS = 2;
    private static final int DIM = 64;
    private static final int WIDTH = HEADS * DIM;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor heads(DType dtype, TokenRows tokens, RealMatrix values) {
        double[] entries = Comparison.entries(values);
        return switch (tokens.format()) {
            case THD -> open.tensor(dtype, entries, tokens.tokens(), HEADS, DIM);
            case BSHD -> open.tensor(dtype, entries, tokens.lengths().size(), tokens.padded(), HEADS, DIM);
            case SBHD ->
                open.tensor(dtype, entries, tokens.padded(), tokens.lengths().size(), HEADS, DIM);
        };
    }

    /** Computes, forward and backward; returns what says which kernels did it. */
    private static String compare(DType dtype, AttentionConfig config, TokenRows queries, TokenRows keys) {
        RealMatrix q = open.normal(dtype, queries.tokens(), WIDTH, 1);
        RealMatrix k = open.normal(dtype, keys.tokens(), WIDTH, 1);
        RealMatrix v = open.normal(dtype, keys.tokens(), WIDTH, 1);
        RealMatrix dO = open.normal(dtype, queries.tokens(), WIDTH, 1);
        for (int row : keys.paddingRows()) {
            k.setRowVector(row, k.getRowVector(row).mapMultiply(64));
            v.setRowVector(row, v.getRowVector(row).mapMultiply(64));
        }
        AttentionWitness witness = new AttentionWitness(config, queries.rows(), keys.rows());
        Sequences sequences = queries.sequences(open.scope()).withKeys(keys.sequences(open.scope()));
        Pass pass = open.pass().begin(sequences);
        pass.seed(7, 3, 1);
        if (!config.dropout().isNone()) {
            long[] state = pass.draw().toLongs(open.stream());
            witness.keep(new AttentionDropoutWitness(config.dropout().probability(), HEADS, state[0], state[1]));
            pass.begin(sequences);
            pass.seed(7, 3, 1);
        }
        DotProductAttention attention = new DotProductAttention(config);
        Tensor query = heads(dtype, queries, q);
        Tensor key = heads(dtype, keys, k);
        Tensor output = attention.forward(query, key, heads(dtype, keys, v), pass);
        open.assertClose("o", witness.forward(q, k, v), output, Tolerances.attention(dtype));
        Tensor dq = open.scope().like(query);
        Tensor dk = open.scope().like(key);
        Tensor dv = open.scope().like(key);
        attention.backward(heads(dtype, queries, dO), dq, dk, dv, pass);
        witness.backward(dO);
        open.assertClose("dq", witness.dq(), dq, Tolerances.attention(dtype));
        open.assertClose("dk", witness.dk(), dk, Tolerances.attention(dtype));
        open.assertClose("dv", witness.dv(), dv, Tolerances.attention(dtype));
        return attention.explain(dtype, pass);
    }

    /** On a GPU cuDNN gives the reason in words of its own. */
    private static void assertTiled(String text, String reason) {
        assertTrue(text.contains("by ops_attention_forward"), text);
        assertTrue(Provider.current() == Provider.CUDA || text.contains(reason), text);
    }

    /** Keys behind the length of their sequence do not count, also where the queries have no padding. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void denseQueriesOverPaddedKeys(DType dtype) {
        for (QkvFormat format : List.of(QkvFormat.BSHD, QkvFormat.SBHD)) {
            compare(
                    dtype,
                    AttentionConfig.of(HEADS, DIM, AttentionMask.none()),
                    TokenRows.padded(format, 4, 4, 4),
                    TokenRows.padded(format, 16, 3, 9));
        }
    }

    /** cuDNN does not write the zeros of queries whose padded sequence has no key; our own kernels do. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void paddedSequencesWithoutKeys(DType dtype) {
        for (QkvFormat format : List.of(QkvFormat.BSHD, QkvFormat.SBHD)) {
            String text = compare(
                    dtype,
                    AttentionConfig.of(HEADS, DIM, AttentionMask.none()),
                    TokenRows.padded(format, 15, 14, 2, 15, 13),
                    TokenRows.padded(format, 18, 0, 15, 3, 0));
            assertTiled(text, dtype == DType.FLOAT32 ? "FLOAT32" : "queries of a padded sequence without keys");
        }
    }

    /** What a graph has captured of cuDNN's kernels stays theirs when lengths change; our own kernels take all lengths. */
    @Test
    void graphsOfPaddedKeysTellWhichLengthsTheyTake() {
        Scope scope = open.scope();
        CuSeqlens lengths = CuSeqlens.fixed(scope, 2, 8);
        lengths.set(offsets(0, 0, 3));
        Sequences keys = Sequences.padded(QkvFormat.BSHD, lengths, 8);
        Sequences sequences = Sequences.dense(scope, QkvFormat.BSHD, 2, 4).withKeys(keys);
        DotProductAttention attention = new DotProductAttention(AttentionConfig.of(HEADS, DIM, AttentionMask.none()));
        RealMatrix zeros = new BlockRealMatrix(16, WIDTH);
        Tensor query =
                heads(DType.BFLOAT16, TokenRows.padded(QkvFormat.BSHD, 4, 4, 4), zeros.getSubMatrix(0, 7, 0, 127));
        Tensor key = heads(DType.BFLOAT16, TokenRows.padded(QkvFormat.BSHD, 8, 8, 8), zeros);
        Runnable forward = () -> attention.forward(query, key, key, open.pass().begin(sequences));

        forward.run();
        open.stream().capture(forward).close();
        lengths.set(offsets(0, 5, 8));
        keys.follow();
        forward.run();
        open.stream().capture(forward).close();
        IllegalArgumentException thrown =
                assertThrows(IllegalArgumentException.class, () -> lengths.set(offsets(0, 5, 5)));
        assertEquals(
                "source: expected tokens in each sequence, for a graph was captured whose attention by cuDNN over these keys"
                        + " needs them, got none in sequence 1; capture it while a sequence has none",
                thrown.getMessage());
        lengths.set(offsets(0, 1, 2));
        assertEquals(1, lengths.shortest());
    }

    private static MemorySegment offsets(int... values) {
        return Arena.ofAuto().allocateFrom(ValueLayout.JAVA_INT, values);
    }

    @Test
    void paddingIsThatOfEitherSide() {
        Sequences full = TokenRows.padded(QkvFormat.BSHD, 4, 4, 4).sequences(open.scope());
        Sequences padded = TokenRows.padded(QkvFormat.BSHD, 8, 3, 8).sequences(open.scope());
        assertEquals(Padding.NONE, full.padding());
        assertEquals(Padding.BY_LENGTHS, full.withKeys(padded).padding());
        assertEquals(Padding.NONE, full.withKeys(padded).queries().padding());
        assertEquals(Padding.BY_LENGTHS, padded.withKeys(full).padding());
        assertEquals(Padding.NONE, full.withKeys(full).padding());
    }

    /** A window without a causal mask is aligned with the last query and key, in longer and in shorter sequences of keys. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16"})
    void windowsEndAtTheBottomRight(DType dtype) {
        AttentionMask window = AttentionMask.none().withWindow(2, 1);
        AttentionConfig config = AttentionConfig.of(HEADS, DIM, window);
        compare(dtype, config, TokenRows.packed(4, 2, 5), TokenRows.packed(9, 2, 3));
        double[] o = new double[WIDTH];
        Pass pass = open.pass().begin(Sequences.packed(open.scope(), 1).withKeys(Sequences.packed(open.scope(), 9)));
        RealMatrix values = new BlockRealMatrix(9, WIDTH);
        for (int key = 0; key < 9; key++) {
            values.setRowVector(key, values.getRowVector(key).mapAdd(key));
        }
        RealMatrix zero = new BlockRealMatrix(9, WIDTH);
        Tensor output = new DotProductAttention(config)
                .forward(
                        heads(dtype, TokenRows.packed(1), zero.getSubMatrix(0, 0, 0, WIDTH - 1)),
                        heads(dtype, TokenRows.packed(9), zero),
                        heads(dtype, TokenRows.packed(9), values),
                        pass);
        Arrays.fill(o, 7); // the mean of keys 6, 7 and 8: the only query stands on the last key
        open.assertClose("o", o, output, Tolerances.attention(dtype));
    }

    /** Keys that the pass names besides are those of cross-attention. */
    @Test
    void selfAttentionReadsTheQueriesAlone() {
        ModelPlan plan = new ModelPlan();
        MultiheadAttention layer = new MultiheadAttention(
                NormConfig.layerNorm(WIDTH),
                AttentionConfig.of(HEADS, DIM, AttentionMask.none()),
                Initializer.normal(0.1f),
                plan);
        Sequences queries = Sequences.packed(open.scope(), 2, 1);
        Sequences both = queries.withKeys(Sequences.packed(open.scope(), 9, 4));
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 3, WIDTH, 1));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3)) {
            open.draw(parameters);
            float[] alone = open.read(layer.forward(x, open.pass().begin(queries)));
            assertArrayEquals(alone, open.read(layer.forward(x, open.pass().begin(both))));
        }
    }

    /** TE refuses them, and our own kernels compute them. */
    @Test
    void moreQueriesThanKeysUnderWindows() {
        TokenRows queries = TokenRows.padded(QkvFormat.BSHD, 14, 14, 14);
        TokenRows keys = TokenRows.padded(QkvFormat.BSHD, 12, 12, 12);
        AttentionConfig plain = AttentionConfig.of(HEADS, DIM, AttentionMask.none());
        for (AttentionMask mask : List.of(
                AttentionMask.causal().withWindow(3, 0),
                AttentionMask.none().withWindow(5, 5),
                AttentionMask.causalBottomRight())) {
            assertTiled(
                    compare(DType.BFLOAT16, plain.withMask(mask), queries, keys), "cuDNN takes more queries than keys");
        }
        String text = compare(DType.BFLOAT16, plain, queries, keys);
        assertTrue(text.contains("te_fused_attn_fwd_v2"), text);
    }

    /** The same of weights that are dropped under a mask from the bottom right, in self-attention, too. */
    @Test
    void dropoutUnderBottomRightMasks() {
        AttentionConfig config = AttentionConfig.of(HEADS, DIM, AttentionMask.causalBottomRight())
                .withDropout(Dropout.of(0.3f));
        TokenRows packed = TokenRows.packed(9, 0, 13);
        TokenRows padded = TokenRows.padded(QkvFormat.SBHD, 12, 5, 12);
        for (TokenRows tokens : List.of(packed, padded)) {
            assertTiled(compare(DType.BFLOAT16, config, tokens, tokens), "cuDNN has no dropout");
        }
    }
}
