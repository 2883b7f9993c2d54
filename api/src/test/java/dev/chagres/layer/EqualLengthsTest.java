package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.QkvFormat;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Packed sequences of one length: attention's kernels are told dense ones, and the numbers are those of packed ones. */
@Tag("L0")
@Tag("L1")
class EqualLengthsTest {
    private static final int LENGTH = 128;
    private static final int BATCH = 2;
    private static final int TOKENS = BATCH * LENGTH;
    private static final int HIDDEN = 32;
    private static final String DENSE = "; dense, for all sequences have 128 tokens";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** An attention, with the type of its numbers. */
    private enum Kind {
        GROUPED(DType.BFLOAT16, causal(4, 64).withKeyHeads(2)),
        ONE_BUFFER(DType.FLOAT16, AttentionConfig.of(2, 64, AttentionMask.none())),
        WINDOW(DType.BFLOAT16, AttentionConfig.of(2, 64, AttentionMask.causal().withWindow(30, 0))),
        DROPS(DType.BFLOAT16, causal(2, 64).withDropout(Dropout.of(0.2f))),
        NARROW(DType.BFLOAT16, causal(2, 16)),
        SINGLE_PRECISION(DType.FLOAT32, causal(2, 16).withKeyHeads(1)),
        EIGHT_BITS(DType.BFLOAT16, causal(2, 128).withKeyHeads(1)),
        EIGHT_BITS_IN_ONE_BUFFER(DType.BFLOAT16, causal(1, 128));

        private final DType dtype;
        private final AttentionConfig config;

        Kind(DType dtype, AttentionConfig config) {
            this.dtype = dtype;
            this.config = config;
        }

        boolean isQuantized() {
            return name().startsWith("EIGHT_BITS");
        }
    }

    private static AttentionConfig causal(int heads, int dim) {
        return AttentionConfig.of(heads, dim, AttentionMask.causal());
    }

    /** An attention that trains. */
    private static final class Model implements AutoCloseable {
        private final Kind kind;
        private final Pass pass = Pass.training(open.device());
        private final MultiheadAttention layer;
        private final Parameters parameters;
        private final Tensor x;
        private final Tensor dy;

        Model(Kind kind) {
            this.kind = kind;
            ModelPlan plan = new ModelPlan();
            layer = new MultiheadAttention(
                    NormConfig.layerNorm(HIDDEN), kind.config, Bias.PRESENT, Initializer.normal(0.2f), plan);
            layer.rotate(RotaryEmbedding.of(open.scope(), 2 * LENGTH, kind.config.headDim()));
            parameters = Parameters.allocate(open.device(), plan, kind.dtype, 3);
            if (kind.isQuantized()) {
                pass.autocast(Quantizers.allocate(
                        parameters, DelayedScaling.standard().withAttention(AttentionPrecision.FP8_DPA)));
            }
            x = drawn(1);
            dy = drawn(2);
        }

        private Tensor drawn(long key) {
            float[] values = new float[TOKENS * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) CounterRandom.normal(key, i);
            }
            Tensor tensor = open.scope().tensor(kind.dtype, TOKENS, HIDDEN);
            tensor.set(open.stream(), values);
            return tensor;
        }

        Tensor forward(Sequences sequences) {
            return layer.forward(x, pass.begin(sequences));
        }

        void step(Sequences sequences) {
            forward(sequences);
            layer.backward(dy, pass);
            parameters.nextStep();
        }

        /** Returns the output and all gradients. */
        List<float[]> run(Sequences sequences) {
            pass.seed(9, 0, 0);
            float[] y = open.read(forward(sequences));
            float[] dx = open.read(layer.backward(dy, pass));
            List<float[]> all = List.of(y, dx, open.read(parameters.gradients()));
            parameters.nextStep();
            return all;
        }

        String explain(Sequences sequences) {
            return layer.explain(x, pass.begin(sequences));
        }

        @Override
        public void close() {
            pass.close();
            parameters.close();
        }
    }

    private static MemorySegment offsets(int... offsets) {
        return Arena.ofAuto().allocateFrom(ValueLayout.JAVA_INT, offsets);
    }

    /** Returns the same sequences, which could have other lengths at the next launch of a graph. */
    private static Sequences changeable() {
        CuSeqlens offsets = CuSeqlens.fixed(open.scope(), BATCH + 1, LENGTH, TOKENS);
        offsets.set(offsets(0, LENGTH, TOKENS, TOKENS));
        return Sequences.packed(offsets);
    }

    @ParameterizedTest
    @EnumSource
    void haveTheNumbersOfDenseOnesAndOfPackedOnes(Kind kind) {
        Sequences equal = Sequences.packed(open.scope(), LENGTH, LENGTH);
        List<float[]> actual;
        try (Model model = new Model(kind)) {
            String text = model.explain(equal);
            assertTrue(text.contains(DENSE), text);
            assertEquals(kind.isQuantized(), text.contains("; in eight bits by FP8_DPA"), text);
            assertFalse(model.explain(changeable()).contains(DENSE), "with an empty sequence");
            actual = model.run(equal);
        }
        try (Model model = new Model(kind)) { // scales of eight bits begin anew
            assertSame(kind, model.run(Sequences.dense(open.scope(), QkvFormat.BSHD, BATCH, LENGTH)), actual);
            if (!kind.isQuantized()) { // packed sequences are never in eight bits
                assertSame(kind, model.run(changeable()), actual);
            }
        }
    }

    /** On a GPU the kernels of packed and of dense sequences may add up in another order, and drop other weights. */
    private static void assertSame(Kind kind, List<float[]> expected, List<float[]> actual) {
        for (int i = 0; i < expected.size(); i++) {
            if (Provider.current() == Provider.REFERENCE) {
                assertArrayEquals(expected.get(i), actual.get(i));
            } else if (kind != Kind.DROPS) {
                float most = 0;
                for (float each : expected.get(i)) {
                    most = Math.max(most, Math.abs(each));
                }
                assertArrayEquals(expected.get(i), actual.get(i), 0.02f * most);
            }
        }
    }

    /** One object whose lengths change from step to step, as a ring of uploads has it. */
    @Test
    void followTheOffsets() {
        CuSeqlens lengths = new CuSeqlens();
        Sequences sequences = Sequences.packed(lengths);
        try (Model model = new Model(Kind.GROUPED)) {
            for (int[] each : new int[][] {{128, 128}, {100, 156}, {256}, {128, 128}, {128, 127, 1}}) {
                int[] offsets = new int[each.length + 1];
                for (int i = 0; i < each.length; i++) {
                    offsets[i + 1] = offsets[i] + each[i];
                }
                lengths.set(open.scope(), offsets(offsets), each.length);
                Sequences dense = sequences.asDense();
                assertEquals(each[0] == TOKENS / each.length, dense != null, "sequences of " + each[0]);
                if (dense != null) {
                    assertEquals("BSHD of " + each.length + " sequences, 256 tokens", dense.toString());
                    assertEquals(Sequences.Padding.NONE, dense.padding());
                }
                assertSame(model.kind, model.run(Sequences.packed(open.scope(), each)), model.run(sequences));
            }
        }
    }

    @Test
    void othersAreNotDense() {
        Sequences equal = Sequences.packed(open.scope(), LENGTH, LENGTH);
        assertNotNull(equal.asDense());
        assertNull(Sequences.packed(open.scope(), LENGTH, LENGTH - 1).asDense());
        assertNull(Sequences.packed(open.scope(), 64, 64).asDense(), "no multiple of 128");
        assertNull(Sequences.packed(open.scope(), LENGTH, LENGTH, 0).asDense());
        assertNull(Sequences.packed(open.scope()).asDense());
        assertNull(Sequences.packed(open.scope(), 0, 0).asDense());
        assertNull(Sequences.packed(open.scope(), new int[] {128, 128}, new int[] {128, 130})
                .asDense());
        assertNull(equal.withKeys(equal).asDense());
        assertNotNull(equal.withKeys(equal).queries().asDense());
        assertNull(Sequences.dense(open.scope(), QkvFormat.BSHD, BATCH, LENGTH).asDense());
        assertNull(changeable().asDense());
        CuSeqlens fixed = CuSeqlens.fixed(open.scope(), BATCH, LENGTH, TOKENS);
        Sequences sequences = Sequences.packed(fixed);
        assertNotNull(sequences.asDense(), "it can be set to no other lengths");
        String refusal = assertThrows(IllegalArgumentException.class, () -> fixed.set(offsets(0, 127, TOKENS)))
                .getMessage();
        assertEquals(
                "source: expected sequences of at most 128 tokens, as CuSeqlens.fixed was told, got one of 129",
                refusal);
    }

    @ParameterizedTest
    @EnumSource(names = {"GROUPED", "ONE_BUFFER", "EIGHT_BITS"})
    void aSteadyStepMakesNoGarbage(Kind kind) {
        Sequences equal = Sequences.packed(open.scope(), LENGTH, LENGTH);
        try (Model model = new Model(kind)) {
            model.step(equal);
            model.step(equal);
            Allocation.assertNone("a step of " + kind, () -> model.step(equal), 3);
        }
    }
}
