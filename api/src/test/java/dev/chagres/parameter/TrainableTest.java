package dev.chagres.parameter;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import java.util.List;
import org.junit.jupiter.api.Test;

class TrainableTest {
    private static List<Linear> layers(ModelPlan plan) {
        return List.of(
                new Linear(16, 16, Initializer.zeros(), plan.group("layers.0")),
                new Linear(16, 16, Initializer.zeros(), plan.group("layers.1")),
                new Linear(16, 16, Initializer.zeros(), plan.group("layers.10")));
    }

    @Test
    void freezesWhatNoPatternMeans() {
        // @start region="trainable"
        ModelPlan plan = new ModelPlan();
        plan.train(Trainable.only("layers.1", "*.bias")); // before layers are made
        List<Linear> layers = layers(plan);
        // @end
        assertEquals(
                List.of("layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.10.bias"),
                plan.parameters().stream()
                        .filter(Parameter::isTrained)
                        .map(Parameter::name)
                        .toList());
        assertTrue(layers.getFirst().weight().isFrozen());
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                AdamW adam = new AdamW(parameters, AdamW.Config.standard())) {
            assertEquals(256 + 3 * 16, parameters.gradients().count(), "no memory for gradients of what is frozen");
            assertEquals(
                    "parameter layers.0.weight is frozen: it has no gradient",
                    assertThrows(
                                    IllegalStateException.class,
                                    () -> parameters.get("layers.0.weight").gradient())
                            .getMessage());
            assertFalse(adam.state().tensors().keySet().stream().anyMatch(name -> name.contains("layers.0.weight")));
        }
    }

    @Test
    void knowsAllAndAllBut() {
        assertTrue(Trainable.all().trains("layers.0.weight"));
        Trainable some = Trainable.allBut("embedding", "layers.*.weight");
        assertFalse(some.trains("embedding.weight"));
        assertFalse(some.trains("layers.10.weight"));
        assertTrue(some.trains("layers.10.bias"));
        assertTrue(some.trains("embeddings.weight"));
        assertFalse(Trainable.only("a.b").trains("a+b"), "a dot is a dot");
    }

    @Test
    void refusesPatternsThatMeanNothing() {
        ModelPlan plan = new ModelPlan();
        plan.train(Trainable.only("layers.1", "layers.7"));
        layers(plan);
        try (Device device = Device.open()) {
            assertEquals(
                    "trainable: expected patterns of names of parameters, such as layers.0.weight, got layers.7, which"
                            + " means none",
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Parameters.allocate(device, plan, DType.FLOAT32, 1))
                            .getMessage());
        }
        assertEquals(
                "patterns: expected names of parameters, such as layers.3 or *.bias, got an empty one",
                assertThrows(IllegalArgumentException.class, () -> Trainable.only(""))
                        .getMessage());
        assertEquals(
                "train: expected a plan without parameters, got one with layers.0.weight; call it before layers are made",
                assertThrows(IllegalStateException.class, () -> plan.train(Trainable.all()))
                        .getMessage());
    }
}
