package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.SmallModel;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The memory rule: what a pass computes depends neither on recomputation nor on what becomes of memory that went back. */
@Tag("L0")
@Tag("L1")
class MemoryRuleTest {
    enum Wrapping {
        PLAIN(UnaryOperator.identity()),
        RECOMPUTED(Recomputed::new),
        NESTED(layer -> new Recomputed(new Sequential(layer.name(), new Recomputed(layer))));

        private final UnaryOperator<Layer> wrapper;

        Wrapping(UnaryOperator<Layer> wrapper) {
            this.wrapper = wrapper;
        }
    }

    record Case(DType dtype, float dropout, Wrapping wrapping, MemoryReuse reuse) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            for (float dropout : new float[] {0, 0.1f}) {
                for (Wrapping wrapping : Wrapping.values()) {
                    for (MemoryReuse reuse : MemoryReuse.values()) {
                        cases.add(new Case(dtype, dropout, wrapping, reuse));
                    }
                }
            }
        }
        return cases;
    }

    private static SmallModel.Step train(Case c) {
        MemoryReuse.choose(c.reuse);
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, c.dtype, c.dropout, c.wrapping.wrapper, plan -> {});
                Pass pass = Pass.training(device)) {
            SmallModel.Step step = null;
            for (int i = 0; i < 3; i++) {
                step = model.step(pass);
                model.parameters.forgetGradients();
            }
            return step;
        } finally {
            MemoryReuse.choose(MemoryReuse.USUAL);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void wrappingAndReuseChangeNoBit(Case c) {
        SmallModel.Step expected = train(new Case(c.dtype, c.dropout, Wrapping.PLAIN, MemoryReuse.USUAL));
        SmallModel.Step actual = train(c);
        assertEquals(expected.loss(), actual.loss());
        assertTrue(Float.isFinite(actual.loss()));
        assertArrayEquals(expected.logits(), actual.logits());
        for (int i = 0; i < expected.gradients().size(); i++) {
            assertArrayEquals(expected.gradients().get(i), actual.gradients().get(i), "gradient " + i);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void evaluationEqualsTrainingWithoutDropout(Case c) {
        int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
        float[] expected =
                train(new Case(c.dtype, 0, Wrapping.PLAIN, MemoryReuse.USUAL)).logits();
        MemoryReuse.choose(c.reuse);
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, c.dtype, c.dropout, c.wrapping.wrapper, plan -> {});
                Pass pass = Pass.evaluation(device)) {
            for (int i = 0; i < 3; i++) {
                assertArrayEquals(
                        expected,
                        model.logits(pass, batch[0], SmallModel.LENGTHS).toFloats(device.stream()));
            }
        } finally {
            MemoryReuse.choose(MemoryReuse.USUAL);
        }
    }

    /** Peak of a pass over stacks of these heights. */
    private static List<Long> peaks(boolean training, UnaryOperator<Layer> wrapper, int... heights) {
        List<Long> peaks = new ArrayList<>();
        for (int height : heights) {
            try (Device device = Device.open()) {
                long before = device.peakHeldBytes();
                try (SmallModel model = new SmallModel(device, DType.FLOAT32, 0, wrapper, plan -> {});
                        Pass pass = training ? Pass.training(device) : Pass.evaluation(device)) {
                    pass.begin();
                    pass.sequences(Sequences.packed(pass.scope(), 64));
                    Tensor x = pass.scope().tensor(DType.FLOAT32, 64, SmallModel.HIDDEN);
                    x.zero(device.stream());
                    long held = pass.peakBytes();
                    for (int i = 0; i < height; i++) {
                        model.layers.forward(x, x, pass);
                    }
                    peaks.add(pass.peakBytes() - held);
                }
                assertTrue(device.peakHeldBytes() > before);
            }
        }
        return peaks;
    }

    @Test
    void evaluationTakesNoMoreMemoryForMoreLayers() {
        List<Long> peaks = peaks(false, UnaryOperator.identity(), 1, 2, 8);
        assertEquals(peaks.get(0), peaks.get(1));
        assertEquals(peaks.get(0), peaks.get(2));
    }

    /** Tokens, control flow and mode change from step to step, and still no Java object is made. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16"})
    void aSteadyLoopMakesNoGarbageWhateverItsCourse(DType dtype) {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, dtype, 0.1f, UnaryOperator.identity(), plan -> {});
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            Sequences[] sequences = {
                Sequences.packed(model.inputs, 9, 4),
                Sequences.packed(model.inputs, 30),
                Sequences.packed(model.inputs, 2)
            };
            Tensor[] ids = new Tensor[3];
            Tensor[] labels = new Tensor[3];
            for (int i = 0; i < 3; i++) {
                int[][] batch = SmallModel.batch(i, (int) sequences[i].tokens());
                ids[i] = model.ints(model.inputs, batch[0]);
                labels[i] = model.ints(model.inputs, batch[1]);
            }
            int[] count = {0};
            Runnable step = () -> {
                int which = count[0]++ % 3;
                if (which == 1) {
                    evaluation.begin(sequences[which]);
                    Tensor x = model.embedding.forward(ids[which], evaluation);
                    model.head.forward(model.layers.forward(x, evaluation), evaluation);
                    return;
                }
                pass.begin(sequences[which]);
                Tensor x = model.embedding.forward(ids[which], pass);
                Tensor h = which == 0 ? model.layers.forward(x, pass) : x;
                model.crossEntropy.forward(model.head.forward(h, pass), labels[which], pass);
                Tensor dh = model.head.backward(model.crossEntropy.backward(pass), pass);
                model.embedding.backward(which == 0 ? model.layers.backward(dh, pass) : dh, pass);
                model.parameters.nextStep();
            };
            for (int i = 0; i < 9; i++) {
                step.run();
            }
            Allocation.assertNone("a step", step, 150);
        }
    }

    /** No step repeats another one's tokens, so that addresses keep changing. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16"})
    void randomTokenCountsMakeNoGarbage(DType dtype) {
        int most = 96;
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, dtype, 0.1f, UnaryOperator.identity(), plan -> {});
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            Sequences[] sequences = new Sequences[most];
            Tensor[] ids = new Tensor[most];
            Tensor[] labels = new Tensor[most];
            for (int tokens = 1; tokens <= most; tokens++) {
                int[][] batch = SmallModel.batch(tokens, tokens);
                int longest = Math.min(tokens, 60);
                sequences[tokens - 1] = tokens == longest
                        ? Sequences.packed(model.inputs, tokens)
                        : Sequences.packed(model.inputs, longest, tokens - longest);
                ids[tokens - 1] = model.ints(model.inputs, batch[0]);
                labels[tokens - 1] = model.ints(model.inputs, batch[1]);
            }
            SplittableRandom random = new SplittableRandom(11);
            Runnable step = () -> {
                int which = random.nextInt(most);
                pass.begin(sequences[which]);
                // Moves everything behind it by up to 128 MiB: half a million addresses, more than could be remembered.
                for (int i = random.nextInt(128); i > 0; i--) {
                    pass.scope().tensor(DType.BYTE, 256L * random.nextInt(1 << 12));
                }
                Tensor x = model.layers.forward(model.embedding.forward(ids[which], pass), pass);
                model.crossEntropy.forward(model.head.forward(x, pass), labels[which], pass);
                model.backward(pass);
                norm.compute();
                optimizer.step(1e-3f, norm);
            };
            Allocation.assertNone("a step", step, 150);
        }
    }
}
