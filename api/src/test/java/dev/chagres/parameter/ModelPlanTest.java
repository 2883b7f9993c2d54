package dev.chagres.parameter;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Shape;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A plan: names, groups, what is frozen. */
@Tag("L0")
class ModelPlanTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Initializer ZEROS = Initializer.zeros();
    private static final String TAKEN = "; give each layer a part of the plan of its own, such as plan.child(\"fc1\")";

    private static List<String> names(List<Parameter> parameters) {
        return parameters.stream().map(Parameter::name).toList();
    }

    private static ModelPlan encoder() {
        ModelPlan plan = new ModelPlan();
        plan.group("embedding").declare("weight", ZEROS, 10, 4);
        for (int i = 0; i < 2; i++) {
            ModelPlan layer = plan.group("layers." + i);
            layer.child("norm").declare("weight", Initializer.ones(), 4);
            layer.child("fc").declare("weight", Initializer.normal(1), 8, 4);
        }
        plan.declare("loose", ZEROS, 3);
        return plan;
    }

    @Test
    void aQuantizerSiteHasANameOfItsOwn() {
        ModelPlan plan = new ModelPlan();
        plan.quantizer("input", QuantizerSite.Role.INPUT);
        plan.child("other").quantizer("input", QuantizerSite.Role.INPUT);
        assertThrown(
                ARGUMENT,
                "name: expected one that is not declared yet, got the quantizer site input" + TAKEN,
                () -> plan.quantizer("input", QuantizerSite.Role.GRADIENT));
        assertEquals(2, plan.quantizers().size());
    }

    /** Such as the stages of a pipeline, of which some have parameters in common. */
    @Test
    void aPartHasGroupsByKind() {
        ModelPlan part = encoder()
                .part(
                        one -> !one.name().startsWith("layers.0"),
                        one -> one.name().contains("fc") ? "shared" : "own");
        assertEquals(
                List.of("embedding", "layers.1 own", "layers.1 shared", ""),
                List.copyOf(part.groups().keySet()));
        assertEquals(
                List.of("embedding.weight", "layers.1.norm.weight", "layers.1.fc.weight", "loose"),
                names(part.parameters()));
        assertEquals(40 + 36 + 3, part.count());
    }

    @Test
    void childrenAndGroupsGiveNamesAPrefix() {
        ModelPlan plan = encoder();
        assertEquals("", plan.name());
        assertEquals("a.b", plan.child("a").group("b").name());
        assertEquals(
                List.of(
                        "embedding.weight",
                        "layers.0.norm.weight",
                        "layers.0.fc.weight",
                        "layers.1.norm.weight",
                        "layers.1.fc.weight",
                        "loose"),
                names(plan.parameters()));
        assertEquals(
                List.of("layers.1.norm.weight", "layers.1.fc.weight"),
                names(plan.child("layers").child("1").parameters()));
        assertEquals(
                names(plan.group("layers.1").parameters()),
                names(plan.child("layers.1").parameters()));
        assertEquals(List.of(), plan.child("layer").parameters(), "half a word is no prefix");
        assertEquals(40 + 2 * 36 + 3, plan.count());
        assertEquals(36, plan.child("layers.0").count());
    }

    @Test
    void aParameterIsWhatWasDeclared() {
        Initializer initializer = Initializer.normal(2);
        Parameter own = new ModelPlan().child("a").declareAs(DType.FLOAT32, "b", initializer, 2, 3, 4);
        assertEquals("a.b", own.name());
        assertEquals("a.b[2, 3, 4]", own.toString());
        assertEquals(Shape.of(2, 3, 4), own.shape());
        assertSame(initializer, own.initializer());
        assertEquals(DType.FLOAT32, own.ownType());
        assertEquals(true, own.decays());
        Parameter bias = new ModelPlan().declare("bias", ZEROS, 7);
        assertNull(bias.ownType());
        assertEquals(false, bias.decays());
        assertEquals(false, bias.isFrozen());
        assertEquals(false, bias.hasGradient());
        String text = "parameter bias has no memory yet: call Parameters.allocate";
        assertThrown(IllegalStateException.class, text, bias::weight);
        assertThrown(IllegalStateException.class, text, bias::gradient);
        assertThrown(IllegalStateException.class, text, bias::owner);
        assertThrown(IllegalStateException.class, text, bias::nextGradient);
    }

    @Test
    void groupsAreKeptInTheirOrder() {
        ModelPlan plan = encoder();
        ModelPlan inner = plan.group("layers.0").group("inner");
        inner.declare("x", ZEROS, 1);
        plan.group("layers.0").declare("late", ZEROS, 1);
        assertEquals(
                List.of("embedding", "layers.0", "layers.1", "", "layers.0.inner"),
                List.copyOf(plan.groups().keySet()));
        assertEquals(
                List.of("layers.0.norm.weight", "layers.0.fc.weight", "layers.0.late"),
                names(plan.groups().get("layers.0")));
        assertEquals(List.of("loose"), names(plan.groups().get("")));
        assertEquals(List.of("layers.0.inner.x"), names(plan.groups().get("layers.0.inner")));
        assertThrows(UnsupportedOperationException.class, () -> plan.groups().clear());
        assertThrows(
                UnsupportedOperationException.class, () -> plan.parameters().removeFirst());
    }

    @Test
    void anUngroupedPlanIsOneGroup() {
        ModelPlan plan = ModelPlan.ungrouped();
        plan.group("a").declare("x", ZEROS, 1);
        plan.child("b").group("c").declare("y", ZEROS, 1);
        assertEquals(List.of(""), List.copyOf(plan.groups().keySet()));
        assertEquals(List.of("a.x", "b.c.y"), names(plan.parameters()));
    }

    @Test
    void freezingTakesWhatIsDeclaredUnderThePrefix() {
        ModelPlan plan = encoder();
        plan.child("layers.0").freeze();
        Parameter later = plan.child("layers.0").declare("later", ZEROS, 1);
        assertEquals(
                List.of("layers.0.norm.weight", "layers.0.fc.weight"),
                plan.parameters().stream()
                        .filter(Parameter::isFrozen)
                        .map(Parameter::name)
                        .toList());
        assertEquals(false, later.isFrozen());
        plan.freeze();
        assertEquals(7, plan.parameters().stream().filter(Parameter::isFrozen).count());
    }

    @Test
    void namesAreTakenOnce() {
        ModelPlan plan = new ModelPlan();
        plan.child("a").declare("b", ZEROS, 1);
        assertThrown(
                ARGUMENT,
                "name: expected one that is not declared yet, got a.b" + TAKEN,
                () -> plan.declare("a.b", ZEROS, 1));
        assertThrown(
                ARGUMENT,
                "name: expected one that is not declared yet, got a.b" + TAKEN,
                () -> plan.group("a").declare("b", ZEROS, 2));
        assertThrown(NullPointerException.class, "name: expected a value, got null", () -> plan.child(null));
        assertThrown(NullPointerException.class, "name: expected a value, got null", () -> plan.group(null));
        assertEquals(1, plan.parameters().size());
        assertEquals(1, plan.groups().size());
    }

    @Test
    void whatCannotBeDeclaredLeavesNothing() {
        ModelPlan plan = new ModelPlan();
        assertThrown(
                ARGUMENT,
                "dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got INT32",
                () -> plan.declareAs(DType.INT32, "x", ZEROS, 1));
        assertThrown(
                NullPointerException.class,
                "dtype: expected a value, got null",
                () -> plan.declareAs(null, "x", ZEROS, 1));
        assertThrown(
                NullPointerException.class,
                "initializer: expected a value, got null",
                () -> plan.declare("x", null, 1));
        assertThrown(ARGUMENT, "x: expected positive sizes, got [2, 0]", () -> plan.declare("x", ZEROS, 2, 0));
        assertThrown(ARGUMENT, "ranks: expected at least 1, got 0", () -> plan.padGroups(0));
        assertEquals(List.of(), plan.parameters());
        Parameter vector = plan.declare("x", ZEROS, 1); // the name is still free
        assertThrown(ARGUMENT, "weight: expected a matrix, got x[1]", () -> plan.quantizer("x.weight", vector));
        assertEquals(List.of(), plan.quantizers());
        assertThrown(
                NullPointerException.class, "kind of x: expected a value, got null", () -> plan.regrouped(_ -> null));
    }

    @Test
    void elementsAreCountedOverAllParts() {
        ModelPlan plan = new ModelPlan();
        long most = Long.MAX_VALUE / 16;
        plan.group("a").declare("x", ZEROS, most - 1);
        plan.group("b").declare("y", ZEROS, 1);
        assertThrown(
                ARGUMENT,
                "c.z: expected 1 to 4 dimensions and, with all declared before it, at most " + most
                        + " elements, got [1]",
                () -> plan.group("c").declare("z", ZEROS, 1));
        assertEquals(most, plan.count());
    }

    @Test
    void theTableNamesGroupsAndTotals() {
        ModelPlan plan = encoder();
        String line = "%-24s %4d parameters %,15d elements";
        assertEquals(
                List.of(
                        line.formatted("embedding", 1, 40),
                        line.formatted("layers.0", 2, 36),
                        line.formatted("layers.1", 2, 36),
                        line.formatted("(no group)", 1, 3),
                        line.formatted("all", 6, 115)),
                plan.toString().lines().toList());
    }
}
