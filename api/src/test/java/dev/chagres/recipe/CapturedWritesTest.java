package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.ops.Elementwise;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Recipes and optimizers follow weights that a launch of a graph has written, as they follow those that a call has written. */
@Tag("L0")
@Tag("L1")
class CapturedWritesTest {
    private static final int SIZE = 32;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Writes weights by a method of Tensor or by a kernel, whose writes the caller announces with {@link Parameters#changed}. */
    private enum Write {
        COPY,
        ZERO,
        KERNEL;

        void enqueue(Tensor values, Linear layer, Parameters parameters) {
            Tensor weight = layer.weight().weight();
            switch (this) {
                case COPY -> weight.copyFrom(open.stream(), values);
                case ZERO -> weight.zero(open.stream());
                case KERNEL -> {
                    Elementwise.cast(values, weight, open.stream());
                    parameters.changed();
                }
            }
        }
    }

    private static void with(BiConsumer<Linear, Parameters> test) {
        ModelPlan plan = new ModelPlan();
        Linear layer = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("layer"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            test.accept(layer, parameters);
        }
    }

    private static Tensor values(Scope scope, float factor) {
        Tensor values = scope.tensor(DType.BFLOAT16, SIZE, SIZE);
        values.set(open.stream(), CapturedCastsTest.waves(factor));
        return values;
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.CapturedCastsTest#recipes")
    void recipesCastThem(Recipe recipe) {
        for (Write write : Write.values()) {
            with((layer, parameters) -> {
                try (Quantizers quantizers = Quantizers.allocate(parameters, recipe);
                        Pass pass = Pass.training(open.device());
                        Scope scope = open.device().openScope()) {
                    pass.autocast(quantizers);
                    Tensor x = values(scope, 1);
                    Tensor other = values(scope, 0.3f);
                    layer.forward(x, pass.begin());
                    pass.end();
                    try (Graph graph = open.stream().capture(() -> write.enqueue(other, layer, parameters))) {
                        for (int i = 0; i < 2; i++) {
                            layer.weight().weight().set(open.stream(), CapturedCastsTest.waves(-0.8f));
                            layer.forward(x, pass.begin());
                            graph.launch();
                            float[] actual = layer.forward(x, pass.begin()).toFloats(open.stream());
                            parameters.changed(); // casts the weights anew, whatever was noticed before
                            assertArrayEquals(
                                    layer.forward(x, pass.begin()).toFloats(open.stream()), actual, write.name());
                        }
                    }
                }
            });
        }
    }

    @ParameterizedTest
    @EnumSource
    void optimizersTakeThemOver(Write write) {
        with((layer, parameters) -> {
            try (AdamW adam = new AdamW(parameters, AdamW.Config.standard());
                    Scope scope = open.device().openScope()) {
                Tensor other = values(scope, 0.3f);
                Tensor weight = layer.weight().weight();
                adam.step(0);
                try (Graph graph = open.stream().capture(() -> write.enqueue(other, layer, parameters))) {
                    for (int i = 0; i < 2; i++) {
                        weight.set(open.stream(), CapturedCastsTest.waves(-0.8f));
                        adam.step(0);
                        graph.launch();
                        float[] written = weight.toFloats(open.stream());
                        adam.step(0);
                        assertArrayEquals(written, weight.toFloats(open.stream()));
                    }
                }
            }
        });
    }

    /** Does {@code work}, which holds a step of {@code adam}, and then {@code after}, two times: enqueued, or by launches of a graph. */
    private static void twice(Runnable work, boolean captured, AdamW adam, Runnable after) {
        try (Graph graph = captured ? open.stream().capture(work) : null) {
            for (int i = 0; i < 2; i++) {
                if (graph == null) {
                    work.run();
                } else {
                    adam.rate(1e-3f);
                    graph.launch();
                }
                after.run();
            }
        }
    }

    /** Weights are written and a step is taken: what is written is updated, and masters keep what 16 bits do not. */
    private static List<float[]> writtenAndUpdated(Write write, boolean captured) {
        List<float[]> results = new ArrayList<>();
        with((layer, parameters) -> {
            try (AdamW adam = new AdamW(parameters, AdamW.Config.standard().withWeightDecay(1));
                    Scope scope = open.device().openScope()) {
                Tensor other = values(scope, 0.3f);
                Runnable work = () -> {
                    write.enqueue(other, layer, parameters);
                    adam.step(1e-3f);
                };
                adam.step(1e-3f);
                twice(work, captured, adam, () -> {
                    adam.step(1e-3f);
                    adam.step(1e-3f);
                    results.add(layer.weight().weight().toFloats(open.stream()));
                });
            }
        });
        return results;
    }

    @ParameterizedTest
    @EnumSource
    void theStepOfTheSameGraphTakesThemOver(Write write) {
        List<float[]> expected = writtenAndUpdated(write, false);
        List<float[]> actual = writtenAndUpdated(write, true);
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "round " + i);
        }
    }

    /** Weights are written, a step is taken, and weights are written again: the next step begins from those. */
    private static List<float[]> writtenBehindTheStep(Write write, Masters masters, boolean captured) {
        List<float[]> results = new ArrayList<>();
        with((layer, parameters) -> {
            AdamW.Config config = AdamW.Config.standard().withWeightDecay(1).withMasters(masters);
            try (AdamW adam = new AdamW(parameters, config);
                    Scope scope = open.device().openScope()) {
                Tensor first = values(scope, 0.3f);
                Tensor second = values(scope, -0.7f);
                Runnable work = () -> {
                    write.enqueue(first, layer, parameters);
                    adam.step(1e-3f);
                    write.enqueue(second, layer, parameters);
                };
                adam.step(1e-3f);
                twice(work, captured, adam, () -> {
                    for (int i = 0; i < 3; i++) {
                        adam.step(1e-3f);
                        results.add(layer.weight().weight().toFloats(open.stream()));
                    }
                });
            }
        });
        return results;
    }

    @ParameterizedTest
    @EnumSource
    void theNextStepTakesOverWhatTheGraphWritesBehindItsOwn(Write write) {
        for (Masters masters : Masters.values()) {
            List<float[]> expected = writtenBehindTheStep(write, masters, false);
            List<float[]> actual = writtenBehindTheStep(write, masters, true);
            for (int i = 0; i < expected.size(); i++) {
                assertArrayEquals(expected.get(i), actual.get(i), masters + ", step " + i);
            }
        }
    }

    /** Weights after steps between which a graph that writes them is captured, or not, and never launched. */
    private static float[] stepped(Write write, Masters masters, boolean captured) {
        List<float[]> result = new ArrayList<>();
        with((layer, parameters) -> {
            AdamW.Config config = AdamW.Config.standard().withWeightDecay(1).withMasters(masters);
            try (AdamW adam = new AdamW(parameters, config);
                    Scope scope = open.device().openScope()) {
                Tensor other = values(scope, 0.3f);
                for (int i = 0; i < 8; i++) {
                    adam.step(3e-4f);
                    if (captured) {
                        open.stream()
                                .capture(() -> write.enqueue(other, layer, parameters))
                                .close();
                        assertThrows(
                                IllegalStateException.class,
                                () -> open.stream().capture(() -> {
                                    write.enqueue(other, layer, parameters);
                                    throw new IllegalStateException("stop");
                                }));
                    }
                }
                result.add(layer.weight().weight().toFloats(open.stream()));
            }
        });
        return result.getFirst();
    }

    /** A capture runs nothing: masters keep what 16 bits do not. */
    @ParameterizedTest
    @EnumSource
    void aCaptureAloneChangesNothing(Write write) {
        for (Masters masters : Masters.values()) {
            assertArrayEquals(stepped(write, masters, false), stepped(write, masters, true), masters.name());
        }
    }
}
