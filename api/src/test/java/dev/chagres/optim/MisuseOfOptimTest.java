package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Optimizers: wrong numbers and calls after a close are named, and change nothing. */
@Tag("L0")
@Tag("L1")
@SuppressWarnings({"DataFlowIssue", "NullAway"}) // Callers without a null checker pass null.
class MisuseOfOptimTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Class<IllegalStateException> STATE = IllegalStateException.class;

    private final Device device = Device.open();
    private final Parameters parameters = parameters();

    private Parameters parameters() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.ones(), 2, 8);
        return Parameters.allocate(device, plan, DType.FLOAT32, 1);
    }

    @AfterEach
    void close() {
        parameters.close();
        device.close();
    }

    @Test
    void aRateThatAGroupMakesInfinite() {
        ParameterGroup all = ParameterGroup.of("all", parameter -> true).withRateFactor(Float.MAX_VALUE);
        try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard(), List.of(all))) {
            float[] before = parameters.weights().toFloats(device.stream());
            String text =
                    "rate: expected a number that stays finite times the factor of each group, got 10.0, and 3.4028235E38"
                            + " of group all";
            assertThrown(ARGUMENT, text, () -> optimizer.step(10));
            assertThrown(ARGUMENT, text, () -> optimizer.rate(10));
            assertThrown(ARGUMENT, "rate: expected a number of at least 0, got NaN", () -> optimizer.step(Float.NaN));
            assertEquals(0, optimizer.step());
            assertArrayEquals(before, parameters.weights().toFloats(device.stream()));
            optimizer.step(0);
            assertEquals(1, optimizer.step());
        }
    }

    /** A program that sets the rate for replays, and gives its steps another one, would train with both. */
    @Test
    void aStepWithAnotherRateThanWasSet() {
        try (AdamW optimizer = new AdamW(parameters, AdamW.Config.standard())) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            norm.compute();
            optimizer.rate(0.25f);
            String text =
                    "rate: expected 0.25, which AdamW.rate(rate) has set for this step, got 0.5; give both the same";
            assertThrown(STATE, text, () -> optimizer.step(0.5f));
            assertThrown(STATE, text, () -> optimizer.step(0.5f, norm));
            assertEquals(0, optimizer.step());
            optimizer.step(0.25f, norm);
            optimizer.step(0.5f);
            assertEquals(2, optimizer.step());
        }
    }

    @Test
    void aGroupThatIsMissing() {
        List<ParameterGroup> groups = Arrays.asList(ParameterGroup.of("all", parameter -> true), null);
        assertThrown(
                NullPointerException.class,
                "groups: expected values, got null at 1",
                () -> new AdamW(parameters, AdamW.Config.standard(), groups));
        new AdamW(parameters, AdamW.Config.standard()).close();
    }

    @Test
    void anOptimizerThatIsClosed() {
        AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
        GradientNorm norm = new GradientNorm(parameters, 1);
        norm.compute();
        optimizer.close();
        optimizer.close();
        String text = "the AdamW of device 0 is closed; make another with new AdamW(parameters, config)";
        assertThrown(STATE, text, () -> optimizer.step(1));
        assertThrown(STATE, text, () -> optimizer.step(1, norm));
        assertThrown(STATE, text, () -> optimizer.step(1, norm.scale()));
        assertThrown(STATE, text, () -> optimizer.rate(1));
        assertThrown(STATE, text, optimizer::step);
        assertThrown(STATE, text, optimizer::state);
        assertEquals(0, parameters.step());
        try (AdamW other = new AdamW(parameters, AdamW.Config.standard())) {
            other.step(1, norm);
            assertEquals(1, parameters.step());
        }
    }

    @Test
    void parametersThatAreClosed() {
        AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
        GradientNorm norm = new GradientNorm(parameters, 1);
        parameters.close();
        String text = "the parameters are closed; make others with Parameters.allocate";
        assertThrown(STATE, text, norm::compute);
        assertThrown(STATE, text, () -> optimizer.step(1));
        assertThrown(STATE, text, () -> new GradientNorm(parameters, 1));
        assertThrown(STATE, text, () -> new AdamW(parameters, AdamW.Config.standard()));
        assertThrown(STATE, text, parameters::weights);
        optimizer.close();
        try (Parameters others = parameters()) {
            Tensor weights = others.weights();
            assertEquals(16, weights.count());
        }
    }
}
