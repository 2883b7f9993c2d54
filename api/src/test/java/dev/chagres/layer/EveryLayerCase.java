package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** A kind of layer, its type and its recipe, and how tests run it. */
public record EveryLayerCase(
        LayerKind kind, DType dtype, @Nullable Recipe recipe, WeightStorage storage) {
    public static final UnaryOperator<Layer> PLAIN = UnaryOperator.identity();
    public static final List<UnaryOperator<Layer>> WRAPPERS = List.of(
            PLAIN, Recomputed::new, layer -> new Recomputed(new Sequential(layer.name(), new Recomputed(layer))));
    public static final List<Recipe> RECIPES =
            List.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
    public static final Consumer<ModelPlan> ALL = plan -> {};

    public EveryLayerCase(LayerKind kind, DType dtype, @Nullable Recipe recipe) {
        this(kind, dtype, recipe, WeightStorage.MODEL_TYPE);
    }

    @Override
    public String toString() {
        return kind + ", " + dtype
                + (recipe == null ? "" : ", " + recipe.getClass().getSimpleName())
                + (storage == WeightStorage.QUANTIZED ? ", quantized weights" : "");
    }

    /** Returns each kind in each type and, where it multiplies, by each recipe, once with weights in eight bits. */
    public static List<EveryLayerCase> all() {
        List<EveryLayerCase> cases = new ArrayList<>();
        for (LayerKind kind : LayerKinds.all()) {
            cases.add(new EveryLayerCase(kind, DType.FLOAT32, null));
            cases.add(new EveryLayerCase(kind, DType.BFLOAT16, null));
            if (kind.multiplies()) {
                RECIPES.forEach(recipe -> cases.add(new EveryLayerCase(kind, DType.BFLOAT16, recipe)));
                Recipe current = Float8CurrentScaling.standard();
                cases.add(new EveryLayerCase(kind, DType.BFLOAT16, current, WeightStorage.QUANTIZED));
            }
        }
        return cases;
    }

    public interface Run<R> {
        R of(EveryLayer model, Pass pass);
    }

    /** Runs a model of this case on a device of its own. */
    public <R> R run(
            UnaryOperator<Layer> wrapper, MemoryReuse reuse, Consumer<ModelPlan> change, boolean training, Run<R> run) {
        MemoryReuse.choose(reuse);
        try (Device device = Device.open();
                EveryLayer model = new EveryLayer(device, kind, dtype, recipe, storage, wrapper, change);
                Pass pass = training ? Pass.training(device) : Pass.evaluation(device)) {
            return run.of(model, pass);
        } finally {
            MemoryReuse.choose(MemoryReuse.USUAL);
        }
    }

    /** Trains one step. */
    public EveryLayer.Step train() {
        return run(PLAIN, MemoryReuse.USUAL, ALL, true, EveryLayer::step);
    }

    public static void assertSame(EveryLayer.Step expected, EveryLayer.Step actual) {
        assertArrayEquals(expected.y(), actual.y(), "y");
        assertArrayEquals(expected.dx(), actual.dx(), "dx");
        assertArrayEquals(expected.dmemory(), actual.dmemory(), "gradient of the memory");
        assertEquals(expected.gradients().size(), actual.gradients().size());
        for (int i = 0; i < expected.gradients().size(); i++) {
            assertArrayEquals(expected.gradients().get(i), actual.gradients().get(i), "gradient " + i);
        }
    }
}
