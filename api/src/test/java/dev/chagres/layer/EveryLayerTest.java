package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import java.io.IOException;
import java.lang.reflect.Modifier;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every layer class: trained, evaluated, recomputed, in place; the same bits each way. */
@Tag("L0")
@Tag("L1")
class EveryLayerTest {
    static List<EveryLayerCase> cases() {
        return EveryLayerCase.all();
    }

    /** A class that is added here joins these tests. */
    @Test
    void everyPublicLayerIsHere() throws IOException, URISyntaxException {
        Path place = Path.of(
                Layer.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        Set<String> layers = new TreeSet<>();
        for (String folder : List.of("dev/chagres/layer", "dev/chagres/pass")) {
            try (Stream<Path> files = Files.list(place.resolve(folder))) {
                for (Path file :
                        files.filter(f -> f.toString().endsWith(".class")).toList()) {
                    String name = file.getFileName().toString().replace(".class", "");
                    Class<?> type = load(folder.replace('/', '.') + "." + name);
                    int modifiers = type.getModifiers();
                    if (Layer.class.isAssignableFrom(type)
                            && Modifier.isPublic(modifiers)
                            && !Modifier.isAbstract(modifiers)) {
                        layers.add(type.getSimpleName());
                    }
                }
            }
        }
        assertEquals(
                layers,
                LayerKinds.all().stream()
                        .map(kind -> kind.type().getSimpleName())
                        .collect(Collectors.toCollection(TreeSet::new)));
    }

    private static Class<?> load(String name) {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException e) {
            throw new IllegalStateException(e);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void wrappingAndReuseChangeNoBit(EveryLayerCase c) {
        EveryLayer.Step expected =
                c.run(EveryLayerCase.PLAIN, MemoryReuse.USUAL, EveryLayerCase.ALL, true, EveryLayerTest::secondStep);
        assertTrue(finite(expected.y()) && finite(expected.dx()));
        if (!(c.recipe() instanceof DelayedScaling)) {
            EveryLayerCase.assertSame(c.train(), expected);
        }
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            for (MemoryReuse reuse : MemoryReuse.values()) {
                EveryLayerCase.assertSame(
                        expected, c.run(wrapper, reuse, EveryLayerCase.ALL, true, EveryLayerTest::secondStep));
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
    void evaluationComputesTheSameAndKeepsItsOutputAlone(EveryLayerCase c) {
        boolean drops = c.kind().name().contains("drop");
        LayerKind same = drops ? named(c.kind().name().replaceFirst(" with drop.*", "")) : c.kind();
        float[] expected = new EveryLayerCase(same, c.dtype(), c.recipe(), c.storage())
                .train()
                .y();
        for (MemoryReuse reuse : MemoryReuse.values()) {
            c.run(EveryLayerCase.PLAIN, reuse, EveryLayerCase.ALL, false, (model, pass) -> {
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

    private static LayerKind named(String name) {
        return LayerKinds.all().stream()
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
    void recomputationKeepsTheOutputAlone(EveryLayerCase c) {
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS.subList(1, 3)) {
            c.run(wrapper, MemoryReuse.USUAL, EveryLayerCase.ALL, true, (model, pass) -> {
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
    void withoutSavingIsAsInEvaluation(EveryLayerCase c) {
        EveryLayer.Step expected = c.train();
        c.run(EveryLayerCase.PLAIN, MemoryReuse.POISONED, EveryLayerCase.ALL, true, (model, pass) -> {
            model.begin(pass);
            Tensor y;
            try (Pass.SavingSwitch off = pass.withoutSaving()) {
                y = model.layer.forward(model.x, pass);
                assertArrayEquals(expected.y(), model.read(y), "a training pass drops all the same");
                assertFalse(y.requiresGradient());
            }
            EveryLayerCase.assertSame(expected, model.step(pass));
            return null;
        });
    }

    /** dx in the place of dy, and y in that of x, where the layer says that it may be. */
    @ParameterizedTest
    @MethodSource("cases")
    void inPlaceChangesNoBit(EveryLayerCase c) {
        EveryLayer.Step expected = c.train();
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            c.run(wrapper, MemoryReuse.POISONED, EveryLayerCase.ALL, true, (model, pass) -> {
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
    void noTokens(EveryLayerCase c) {
        if (c.kind().attends()) {
            return;
        }
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            c.run(wrapper, MemoryReuse.USUAL, EveryLayerCase.ALL, true, (model, pass) -> {
                model.begin(pass);
                pass.begin(Sequences.packed(model.inputs, 0));
                Tensor none = model.inputs.tensor(c.dtype(), 0, EveryLayer.HIDDEN);
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
    void explainsItself(EveryLayerCase c) {
        for (UnaryOperator<Layer> wrapper : EveryLayerCase.WRAPPERS) {
            c.run(wrapper, MemoryReuse.USUAL, EveryLayerCase.ALL, true, (model, pass) -> {
                String text = model.layer.explain(model.x, model.begin(pass));
                assertTrue(text.contains("te_") || text.contains("ops_"), text);
                assertTrue(text.startsWith(model.layer.name()) || text.startsWith("layer"), text);
                return null;
            });
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void aSteadyStepMakesNoGarbage(EveryLayerCase c) {
        for (UnaryOperator<Layer> wrapper : List.of(EveryLayerCase.PLAIN, EveryLayerCase.WRAPPERS.getLast())) {
            c.run(wrapper, MemoryReuse.USUAL, EveryLayerCase.ALL, true, (model, pass) -> {
                Tensor dy = model.gradient(model.layer.forward(model.x, model.begin(pass)));
                Allocation.assertNone(
                        c.kind().name(),
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
