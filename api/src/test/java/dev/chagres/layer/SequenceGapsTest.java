package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Packed sequences with gaps: what counts is as without them, and gaps are zero, whatever stood there. */
@Tag("L0")
@Tag("L1")
class SequenceGapsTest {
    private static final int[] LENGTHS = {5, 0, 7, 1};
    private static final int[] PADDED = {8, 3, 7, 66};
    private static final int HEADS = 2;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Returns rows of {@code packed} spread out by the gaps, and {@code filler} between them. */
    private static float[] spread(float[] packed, int width, float filler) {
        float[] all = new float[Arrays.stream(PADDED).sum() * width];
        Arrays.fill(all, filler);
        int from = 0;
        int to = 0;
        for (int i = 0; i < LENGTHS.length; i++) {
            System.arraycopy(packed, from * width, all, to * width, LENGTHS[i] * width);
            from += LENGTHS[i];
            to += PADDED[i];
        }
        return all;
    }

    private static Tensor tensor(DType dtype, float[] values, long... sizes) {
        Tensor tensor = open.unwritten(dtype, sizes);
        tensor.set(open.stream(), values);
        return tensor;
    }

    private static List<float[]> run(DType dtype, int dim, Sequences sequences, List<float[]> inputs) {
        long tokens = sequences.tokens();
        DotProductAttention attention = new DotProductAttention(AttentionConfig.of(HEADS, dim, AttentionMask.causal()));
        Pass pass = open.pass().begin(sequences);
        Tensor q = tensor(dtype, inputs.get(0), tokens, HEADS, dim);
        Tensor k = tensor(dtype, inputs.get(1), tokens, HEADS, dim);
        Tensor v = tensor(dtype, inputs.get(2), tokens, HEADS, dim);
        Tensor o = attention.forward(q, k, v, pass);
        float[] output = open.read(o);
        List<Tensor> gradients = List.of(
                open.unwritten(dtype, tokens, HEADS, dim),
                open.unwritten(dtype, tokens, HEADS, dim),
                open.unwritten(dtype, tokens, HEADS, dim));
        attention.backward(
                tensor(dtype, inputs.get(3), tokens, HEADS, dim),
                gradients.get(0),
                gradients.get(1),
                gradients.get(2),
                pass);
        return List.of(output, open.read(gradients.get(0)), open.read(gradients.get(1)), open.read(gradients.get(2)));
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void whatCountsIsAsWithoutGaps(DType dtype) {
        for (int dim : new int[] {16, 32}) {
            int width = HEADS * dim;
            List<float[]> inputs = IntStream.range(0, 4)
                    .mapToObj(i -> floats(open.normal(dtype, 13 * width, 1)))
                    .toList();
            List<float[]> wanted = run(dtype, dim, Sequences.packed(open.scope(), LENGTHS), inputs);
            List<float[]> actual = run(
                    dtype,
                    dim,
                    Sequences.packed(open.scope(), LENGTHS, PADDED),
                    inputs.stream().map(each -> spread(each, width, Float.NaN)).toList());
            for (int i = 0; i < wanted.size(); i++) {
                assertArrayEquals(spread(wanted.get(i), width, 0), actual.get(i));
            }
        }
    }

    private static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    @Test
    void sizesCountGaps() {
        Sequences sequences = Sequences.packed(open.scope(), LENGTHS, PADDED);
        assertEquals(84, sequences.tokens());
        assertEquals(66, sequences.length());
        assertEquals(13, sequences.cuSeqlens().tokens());
        assertEquals(84, sequences.placement().tokens());
        assertEquals(84, sequences.withKeys(sequences).keys().tokens());
        assertEquals(84, sequences.startingAt(open.scope(), 1, 2, 3, 4).tokens());
        DotProductAttention wide = new DotProductAttention(AttentionConfig.of(HEADS, 64, AttentionMask.causal()));
        String text = wide.explain(DType.BFLOAT16, open.pass().begin(sequences));
        assertTrue(text.contains("for cuDNN does not write the gaps between packed sequences"), text);
    }

    @Test
    void refusals() {
        assertThrown(
                IllegalArgumentException.class,
                "padded: expected 2, one of each sequence, got 1",
                () -> Sequences.packed(open.scope(), new int[] {1, 2}, new int[] {3}));
        assertThrown(
                IllegalArgumentException.class,
                "padded: expected at least the length of each sequence, got 3 at 1 for a length of 4",
                () -> Sequences.packed(open.scope(), new int[] {1, 4}, new int[] {3, 3}));
    }
}
