package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import java.io.IOException;
import java.lang.reflect.Modifier;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every layer class: trained, evaluated, recomputed, in place, frozen, by micro-batches; the same bits each way. */
@Tag("L0")
@Tag("L1")
class EveryLayerTest {
    private static final UnaryOperator<Layer> PLAIN = UnaryOperator.identity();
    private static final List<UnaryOperator<Layer>> WRAPPERS = List.of(
            PLAIN, Recomputed::new, layer -> new Recomputed(new Sequential(layer.name(), new Recomputed(layer))));
    private static final List<Recipe> RECIPES =
            List.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
    private static final Consumer<ModelPlan> ALL = plan -> {};

    record Case(EveryLayer.Kind kind, DType dtype, @Nullable Recipe recipe) {
        @Override
        public String toString() {
            return kind + ", " + dtype
                    + (recipe == null ? "" : ", " + recipe.getClass().getSimpleName());
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (EveryLayer.Kind kind : EveryLayer.kinds()) {
            cases.add(new Case(kind, DType.FLOAT32, null));
            cases.add(new Case(kind, DType.BFLOAT16, null));
            if (kind.multiplies()) {
                RECIPES.forEach(recipe -> cases.add(new Case(kind, DType.BFLOAT16, recipe)));
            }
        }
        return cases;
    }

    /** A class that is added here joins these tests. */
    @Test
    void everyPublicLayerIsHere() throws IOException, URISyntaxException {
        Path place = Path.of(
                Layer.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        Set<String> layers = new TreeSet<>();
        try (Stream<Path> files = Files.list(place.resolve("dev/chagres/layer"))) {
            for (Path file : files.filter(f -> f.toString().endsWith(".class")).toList()) {
                Class<?> type = load(file.getFileName().toString().replace(".class", ""));
                int modifiers = type.getModifiers();
                if (Layer.class.isAssignableFrom(type)
                        && Modifier.isPublic(modifiers)
                        && !Modifier.isAbstract(modifiers)) {
                    layers.add(type.getSimpleName());
                }
            }
        }
        assertEquals(
                layers,
                EveryLayer.kinds().stream()
                        .map(kind -> kind.type().getSimpleName())
                        .collect(Collectors.toCollection(TreeSet::new)));
    }

    private static Class<?> load(String name) {
        try {
            return Class.forName("dev.chagres.layer." + name);
        } catch (ClassNotFoundException e) {
            throw new IllegalStateException(e);
        }
    }

    private interface Run<R> {
        R of(EveryLayer model, Pass pass);
    }

    private static <R> R run(
            Case c,
            UnaryOperator<Layer> wrapper,
            MemoryReuse reuse,
            Consumer<ModelPlan> change,
            boolean training,
            Run<R> run) {
        MemoryReuse.choose(reuse);
        try (Device device = Device.open();
                EveryLayer model = new EveryLayer(device, c.kind, c.dtype, c.recipe, wrapper, change);
                Pass pass = training ? Pass.training(device) : Pass.evaluation(device)) {
            return run.of(model, pass);
        } finally {
            MemoryReuse.choose(MemoryReuse.USUAL);
        }
    }

    private static EveryLayer.Step train(Case c) {
        return run(c, PLAIN, MemoryReuse.USUAL, ALL, true, EveryLayer::step);
    }

    private static void assertSame(EveryLayer.Step expected, EveryLayer.Step actual) {
        assertArrayEquals(expected.y(), actual.y(), "y");
        assertArrayEquals(expected.dx(), actual.dx(), "dx");
        assertArrayEquals(expected.dmemory(), actual.dmemory(), "gradient of the memory");
        assertEquals(expected.gradients().size(), actual.gradients().size());
        for (int i = 0; i < expected.gradients().size(); i++) {
            assertArrayEquals(expected.gradients().get(i), actual.gradients().get(i), "gradient " + i);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void wrappingAndReuseChangeNoBit(Case c) {
        EveryLayer.Step expected = run(c, PLAIN, MemoryReuse.USUAL, ALL, true, EveryLayerTest::secondStep);
        assertTrue(finite(expected.y()) && finite(expected.dx()));
        if (!(c.recipe instanceof DelayedScaling)) {
            assertSame(train(c), expected);
        }
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            for (MemoryReuse reuse : MemoryReuse.values()) {
                assertSame(expected, run(c, wrapper, reuse, ALL, true, EveryLayerTest::secondStep));
            }
        }
    }

    private static EveryLayer.Step secondStep(EveryLayer model, Pass pass) {
        model.step(pass);
        model.parameters.nextStep();
        return model.step(pass);
    }

    private static boolean finite(float... values) {
        for (float value : values) {
            if (!Float.isFinite(value)) {
                return false;
            }
        }
        return true;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void evaluationComputesTheSameAndKeepsItsOutputAlone(Case c) {
        boolean drops = c.kind.name().contains("drop");
        EveryLayer.Kind same = drops ? named(c.kind.name().replaceFirst(" with drop.*", "")) : c.kind;
        float[] expected = train(new Case(same, c.dtype, c.recipe)).y();
        for (MemoryReuse reuse : MemoryReuse.values()) {
            run(c, PLAIN, reuse, ALL, false, (model, pass) -> {
                assertFalse(pass.isSaving());
                for (int i = 0; i < 2; i++) {
                    assertArrayEquals(expected, model.step(pass).y());
                }
                model.begin(pass);
                long before = pass.scope().usedBytes();
                Tensor y = model.layer.forward(model.x, pass);
                assertEquals(before + aligned(y.byteSize()), pass.scope().usedBytes());
                return null;
            });
        }
    }

    private static EveryLayer.Kind named(String name) {
        return EveryLayer.kinds().stream()
                .filter(kind -> kind.name().equals(name))
                .findFirst()
                .orElseThrow();
    }

    private static long aligned(long bytes) {
        return (bytes + 255) / 256 * 256;
    }

    /** A recomputed layer keeps its output; its input is the caller's. */
    @ParameterizedTest
    @MethodSource("cases")
    void recomputationKeepsTheOutputAlone(Case c) {
        for (UnaryOperator<Layer> wrapper : WRAPPERS.subList(1, 3)) {
            run(c, wrapper, MemoryReuse.USUAL, ALL, true, (model, pass) -> {
                model.begin(pass);
                long before = pass.scope().usedBytes();
                Tensor y = model.layer.forward(model.x, pass);
                assertEquals(before + aligned(y.byteSize()), pass.scope().usedBytes());
                model.layer.backward(model.gradient(y), pass);
                return null;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void withoutSavingIsAsInEvaluation(Case c) {
        EveryLayer.Step expected = train(c);
        run(c, PLAIN, MemoryReuse.POISONED, ALL, true, (model, pass) -> {
            model.begin(pass);
            Tensor y;
            try (Pass.SavingSwitch off = pass.withoutSaving()) {
                y = model.layer.forward(model.x, pass);
                assertArrayEquals(expected.y(), model.read(y), "a training pass drops all the same");
                assertFalse(y.requiresGradient());
            }
            assertSame(expected, model.step(pass));
            return null;
        });
    }

    /** dx in the place of dy, and y in that of x, where the layer says that it may be. */
    @ParameterizedTest
    @MethodSource("cases")
    void inPlaceChangesNoBit(Case c) {
        EveryLayer.Step expected = train(c);
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            run(c, wrapper, MemoryReuse.POISONED, ALL, true, (model, pass) -> {
                if (!model.layer.worksInPlace()) {
                    return null;
                }
                Tensor y = model.layer.forward(model.x, model.begin(pass));
                Tensor gradient = model.gradient(y);
                model.layer.backward(gradient, gradient, pass);
                assertArrayEquals(expected.dx(), model.read(gradient));
                model.begin(pass);
                try (Pass.SavingSwitch off = pass.withoutSaving()) {
                    Tensor place = pass.scope().like(model.x);
                    place.copyFrom(model.device.stream(), model.x);
                    model.layer.forward(place, place, pass);
                    assertArrayEquals(expected.y(), model.read(place));
                }
                return null;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aSecondMicroBatchAddsItsGradients(Case c) {
        EveryLayer.Step once = train(c);
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            run(c, wrapper, MemoryReuse.POISONED, ALL, true, (model, pass) -> {
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
    void halfOfTheGradientsIsTheSameHalf(Case c) {
        EveryLayer.Step expected = train(c);
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            EveryLayer.Step frozen = run(c, wrapper, MemoryReuse.POISONED, ModelPlan::freeze, true, EveryLayer::step);
            assertArrayEquals(expected.y(), frozen.y());
            assertArrayEquals(expected.dx(), frozen.dx());
            assertArrayEquals(expected.dmemory(), frozen.dmemory());
            run(c, wrapper, MemoryReuse.POISONED, ALL, true, (model, pass) -> {
                model.x.stopGradient();
                model.memoryInput.stopGradient();
                EveryLayer.Step step = model.step(pass);
                assertSame(
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
    void oneParameterAloneHasTheSameGradient(Case c) {
        EveryLayer.Step expected = train(c);
        int count = expected.gradients().size();
        for (int alone = 0; alone < count; alone++) {
            int trained = alone;
            EveryLayer.Step step = run(
                    c,
                    PLAIN,
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
                        whole[i], gradient[i], (c.dtype == DType.FLOAT32 ? 1e-5 : 1e-2) * size, "gradient " + trained);
            }
            assertArrayEquals(expected.dx(), step.dx());
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void noTokens(Case c) {
        if (c.kind.attends()) {
            return;
        }
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            run(c, wrapper, MemoryReuse.USUAL, ALL, true, (model, pass) -> {
                model.begin(pass);
                pass.begin(Sequences.packed(model.inputs, 0));
                Tensor none = model.inputs.tensor(c.dtype, 0, EveryLayer.HIDDEN);
                Tensor y = model.layer.forward(none, pass);
                assertEquals(0, y.count());
                assertEquals(none.shape(), model.layer.backward(y, pass).shape());
                model.gradients().forEach(gradient -> assertArrayEquals(new float[gradient.length], gradient));
                return null;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void explainsItself(Case c) {
        for (UnaryOperator<Layer> wrapper : WRAPPERS) {
            run(c, wrapper, MemoryReuse.USUAL, ALL, true, (model, pass) -> {
                String text = model.layer.explain(model.x, model.begin(pass));
                assertTrue(text.contains("te_") || text.contains("ops_"), text);
                assertTrue(text.startsWith(model.layer.name()) || text.startsWith("layer"), text);
                return null;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aSteadyStepMakesNoGarbage(Case c) {
        for (UnaryOperator<Layer> wrapper : List.of(PLAIN, WRAPPERS.getLast())) {
            run(c, wrapper, MemoryReuse.USUAL, ALL, true, (model, pass) -> {
                Tensor dy = model.gradient(model.layer.forward(model.x, model.begin(pass)));
                Allocation.assertNone(
                        c.kind.name(),
                        () -> {
                            model.begin(pass);
                            model.layer.forward(model.x, pass);
                            model.layer.backward(dy, pass);
                            model.memory.backward(pass);
                            model.parameters.nextStep();
                        },
                        20);
                return null;
            });
        }
    }
}
