package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every layer class: frozen in parts and trained by micro-batches, each gradient is the same. */
@Tag("L0")
@Tag("L1")
class EveryLayerGradientsTest {
    static List<EveryLayerCase> cases() {
        return EveryLayerCase.all();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aSecondMicroBatchAddsItsGradients(EveryLayerCase c) {
        EveryLayer.Step once = c.train();
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            c.run(wrapper, MemoryReuse.POISONED, EveryLayerCase.ALL, true, (model, pass) -> {
                model.step(pass);
                List<float[]> twice = model.step(pass).gradients();
                for (int i = 0; i < twice.size(); i++) {
                    float[] expected = once.gradients().get(i);
                    double size = size(expected);
                    for (int j = 0; j < expected.length; j++) {
                        assertEquals(2.0 * expected[j], twice.get(i)[j], 1e-5 * size, "gradient " + i);
                    }
                }
                return null;
            });
        }
    }

    private static double size(float... values) {
        double square = 0;
        for (float value : values) {
            square += (double) value * value;
        }
        return Math.sqrt(square) + 1e-30;
    }

    /** All parameters frozen: the same gradient of the input. No gradient of the input: the same of the parameters. */
    @ParameterizedTest
    @MethodSource("cases")
    void halfOfTheGradientsIsTheSameHalf(EveryLayerCase c) {
        EveryLayer.Step expected = c.train();
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            EveryLayer.Step frozen = c.run(wrapper, MemoryReuse.POISONED, ModelPlan::freeze, true, EveryLayer::step);
            assertArrayEquals(expected.y(), frozen.y());
            assertArrayEquals(expected.dx(), frozen.dx());
            assertArrayEquals(expected.dmemory(), frozen.dmemory());
            c.run(wrapper, MemoryReuse.POISONED, EveryLayerCase.ALL, true, (model, pass) -> {
                model.x.stopGradient();
                model.memoryInput.stopGradient();
                EveryLayer.Step step = model.step(pass);
                EveryLayerCase.assertSame(
                        new EveryLayer.Step(
                                expected.y(),
                                new float[expected.dx().length],
                                new float[expected.dmemory().length],
                                expected.gradients()),
                        step);
                return null;
            });
        }
    }

    /** Biases alone, weights alone, each parameter alone: its gradient is the same as among all others. */
    @ParameterizedTest
    @MethodSource("cases")
    void oneParameterAloneHasTheSameGradient(EveryLayerCase c) {
        EveryLayer.Step expected = c.train();
        int count = expected.gradients().size();
        for (int alone = 0; alone < count; alone++) {
            int trained = alone;
            EveryLayer.Step step = c.run(
                    EveryLayerCase.PLAIN,
                    MemoryReuse.POISONED,
                    plan -> {
                        List<Parameter> all = plan.groups().values().stream()
                                .flatMap(List::stream)
                                .toList();
                        for (int i = 0; i < all.size(); i++) {
                            if (i != trained) {
                                all.get(i).freeze();
                            }
                        }
                    },
                    true,
                    EveryLayer::step);
            float[] gradient = step.gradients().get(trained);
            float[] whole = expected.gradients().get(trained);
            double size = size(whole);
            for (int i = 0; i < whole.length; i++) {
                // Alone, a bias's gradient is a sum of ours and a norm's passes through the type: other roundings.
                assertEquals(
                        whole[i],
                        gradient[i],
                        (c.dtype() == DType.FLOAT32 ? 1e-5 : 1e-2) * size,
                        "gradient " + trained);
            }
            assertArrayEquals(expected.dx(), step.dx());
        }
    }
}
