package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.witness.PhiloxWitness;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The random numbers of a pass: fixed by seed, step, micro-batch and the number of the draw. */
@Tag("L0")
@Tag("L1")
class RngStateTest {
    private static final int MOST = 1 << 14;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static long[] draw(Pass pass) {
        return pass.draw().toLongs(open.stream());
    }

    private static long[] draw(long seed, long step, long microBatch, int site) {
        Pass pass = open.pass().begin();
        pass.seed(seed, step, microBatch);
        for (int i = 0; i < site; i++) {
            pass.draw();
        }
        return draw(pass);
    }

    @Test
    void aDrawIsSeedAndOffset() {
        for (long[] run : new long[][] {{0, 0, 0}, {-5, 7, 3}, {Long.MIN_VALUE, Long.MAX_VALUE, 1}}) {
            long word = CounterRandom.bits(CounterRandom.bits(run[0], run[1]), run[2]);
            Pass pass = open.pass().begin();
            pass.seed(run[0], run[1], run[2]);
            for (long site = 0; site < 5; site++) {
                Tensor state = pass.draw();
                assertEquals(DType.INT64, state.dtype());
                assertEquals(Shape.of(2), state.shape());
                assertArrayEquals(new long[] {word, site << 40}, state.toLongs(open.stream()));
            }
        }
    }

    @Test
    void equalRunsDrawEqualAndOthersOther() {
        long[] expected = draw(42, 7, 3, 2);
        assertArrayEquals(expected, draw(42, 7, 3, 2));
        Set<String> seen = new HashSet<>();
        for (long[] other : new long[][] {
            {42, 7, 3, 2}, {43, 7, 3, 2}, {-42, 7, 3, 2}, {42, 8, 3, 2}, {42, 6, 3, 2}, {42, 7, 4, 2}, {42, 7, 2, 2},
            {42, 7, 3, 1}, {42, 7, 3, 3}, {7, 42, 3, 2}, {42, 3, 7, 2}, {0, 0, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}
        }) {
            assertTrue(
                    seen.add(Arrays.toString(draw(other[0], other[1], other[2], (int) other[3]))),
                    () -> Arrays.toString(other));
        }
    }

    /** Another pass, and one of evaluation, draws the same where it is asked. */
    @Test
    void theNumbersAreThoseOfNoPass() {
        long[] expected = draw(1, 2, 3, 0);
        try (Pass other = Pass.training(open.device()).begin();
                Pass evaluation = Pass.evaluation(open.device()).begin()) {
            other.seed(1, 2, 3);
            evaluation.seed(1, 2, 3);
            assertArrayEquals(expected, draw(other));
            assertArrayEquals(expected, draw(evaluation));
        }
    }

    @Test
    void withoutASeedTheMicroBatchesAreCounted() {
        try (Pass pass = Pass.training(open.device())) {
            for (int i = 0; i < 4; i++) {
                pass.begin();
                assertArrayEquals(draw(0, 0, i, 0), draw(pass), "micro-batch " + i);
            }
            pass.begin();
            pass.seed(9, 5, 100);
            pass.begin();
            assertArrayEquals(draw(9, 5, 101, 0), draw(pass), "the seed stays, and the count goes on");
        }
    }

    @Test
    void anotherSeedLeavesWhatWasDrawn() {
        long[] expected = draw(2, 0, 0, 1);
        Pass pass = open.pass().begin();
        pass.seed(1, 0, 0);
        Tensor first = pass.draw();
        long[] before = first.toLongs(open.stream());
        pass.seed(2, 0, 0);
        assertArrayEquals(expected, draw(pass), "the number of the draw goes on");
        assertArrayEquals(before, first.toLongs(open.stream()));
    }

    @Test
    void aPassMakesOnlySoManyDraws() {
        Pass pass = open.pass().begin();
        for (int i = 0; i < MOST - 1; i++) {
            pass.draw();
        }
        assertEquals((MOST - 1L) << 40, draw(pass)[1]);
        String text = "the pass has made 16384 draws, the most that one may make";
        assertThrown(IllegalStateException.class, text, pass::draw);
        pass.begin();
        assertEquals(0, draw(pass)[1]);
    }

    /** The mask is that of Philox4x32-10 computed here, bit by bit, also where the offset needs more than 32 bits. */
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 255, MOST - 1})
    void kernelsDropWhatTheDrawSays(int site) {
        float probability = 0.3f;
        long[] state = draw(open.random().nextLong(), 11, 1, site);
        assertEquals((long) site << 40, state[1]);
        for (int count : new int[] {1, 7, 4097}) {
            Scope scope = open.scope();
            Tensor zero = scope.tensor(DType.FLOAT32, count);
            zero.zero(open.stream());
            Tensor mask = scope.tensor(DType.BYTE, dev.chagres.ops.Dropout.maskBytes(count));
            Tensor rngState = scope.tensor(DType.INT64, 2);
            rngState.set(open.stream(), state);
            dev.chagres.ops.Dropout.dropoutAdd(
                    zero, zero, scope.like(zero), mask, rngState, probability, open.stream());
            boolean[] expected = new boolean[count];
            for (int i = 0; i < count; i++) {
                expected[i] = PhiloxWitness.word(state[0], state[1] + i / 4, i % 4) * 0x1p-32 >= probability;
            }
            assertArrayEquals(expected, open.bits(mask, count));
        }
    }

    private static TransformerLayer dropping(ModelPlan plan) {
        AttentionConfig attention =
                AttentionConfig.of(2, 16, AttentionMask.none()).withDropout(Dropout.of(0.1f));
        return new TransformerLayer(
                TransformerLayerConfig.encoder(32, attention).withHiddenDropout(Dropout.of(0.1f)), plan);
    }

    /** Three draws a layer in training, none in evaluation; recomputation takes no site twice. */
    @Test
    void layersDrawInTrainingOnly() {
        ModelPlan plan = new ModelPlan();
        Layer plain = dropping(plan.child("plain"));
        Layer recomputed = new Recomputed(dropping(plan.child("recomputed")));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1);
                Pass evaluation = Pass.evaluation(open.device())) {
            Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 8, 32, 1));
            Sequences sequences = Sequences.packed(open.scope(), 3, 5);
            Pass pass = open.pass().begin(sequences);
            plain.forward(x, pass);
            assertEquals(3, pass.draws().site());
            Tensor y = recomputed.forward(x, pass);
            assertEquals(6, pass.draws().site());
            recomputed.backward(y, pass);
            assertEquals(6, pass.draws().site());
            evaluation.begin(sequences);
            recomputed.forward(plain.forward(x, evaluation), evaluation);
            assertEquals(0, evaluation.draws().site());
            assertEquals(2 * 12, parameters.all().size());
        }
    }

    @Test
    void drawingMakesNoGarbage() {
        Pass pass = open.pass();
        Allocation.assertNone("draws", () -> {
            pass.begin();
            pass.seed(1, 2, 3);
            pass.draw();
            pass.draw();
        });
    }

    @Test
    void dropoutSaysWhatItDrops() {
        assertEquals(Dropout.none(), Dropout.of(0));
        assertTrue(Dropout.of(0).isNone());
        assertEquals(0.25f, Dropout.of(0.25f).probability());
        for (float probability : new float[] {-0.1f, 1, 2, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "probability: expected 0 <= probability < 1, got " + probability,
                    () -> Dropout.of(probability));
        }
    }
}
