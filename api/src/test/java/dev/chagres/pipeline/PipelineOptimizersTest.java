package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.launch.Ranks;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Config;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Ranks of a pipeline whose optimizers have other settings are told before the first step. */
@Tag("L0")
@Tag("L2")
class PipelineOptimizersTest {
    private static final Config STANDARD = Config.standard();
    private static final String STANDARD_TEXT = "AdamW(beta1=0.9, beta2=0.999, epsilon=1.0E-8, weightDecay=0.01,"
            + " decayMode=DECOUPLED, momentDType=FLOAT32, masters=FLOAT32, biasCorrection=YES)";

    private static String text(String on1, String on0) {
        return "run: expected optimizers with the same settings on all ranks of the pipeline, as one rank would have"
                + " for the whole model, got " + on1 + " on rank 1 and " + on0
                + " on rank 0; give each optimizer the same"
                + " config and groups";
    }

    private static List<ParameterGroup> groups(float rateFactor, float decay) {
        return List.of(
                ParameterGroup.of("table", p -> p.name().startsWith("embedding"))
                        .withRateFactor(rateFactor),
                ParameterGroup.of("top", p -> p.name().startsWith("head")).withWeightDecay(decay));
    }

    @BeforeEach
    void ranksHaveDevices() {
        DevicesNeeded.assume(PipelineMisuseTest.RANKS);
    }

    /** Refuses the second rank's settings on both, computes nothing, and goes on once they are the same. */
    private static void assertRefused(
            Config config, List<ParameterGroup> groups, String on1, List<ParameterGroup> groups0, String on0) {
        PipelineMisuseTest.each(Ranks.local(PipelineMisuseTest.RANKS), (rank, setting) -> {
            Parameters parameters = setting.model.parameters;
            boolean second = rank.index() == 1;
            GradientNorm norm = new GradientNorm(parameters, 1);
            try (AdamW other = new AdamW(parameters, second ? config : STANDARD, second ? groups : groups0)) {
                for (int call = 0; call < 3; call++) {
                    assertThrown(
                            IllegalStateException.class, text(on1, on0), () -> setting.pipeline.run(setting.model, 4));
                }
                assertFalse(parameters.all().stream().anyMatch(Parameter::hasGradient), other.toString());
            }
            try (AdamW same = new AdamW(parameters, config, groups)) {
                setting.pipeline.run(setting.model, 4);
                norm.compute();
                same.step(1e-3f, norm);
                setting.pipeline.run(setting.model, 4);
            }
        });
    }

    @Test
    void configs() {
        assertRefused(
                STANDARD.withEpsilon(1e-4f),
                List.of(),
                STANDARD_TEXT.replace("1.0E-8", "1.0E-4"),
                List.of(),
                STANDARD_TEXT);
        assertRefused(
                STANDARD.withBetas(0.5f, 0.999f),
                List.of(),
                STANDARD_TEXT.replace("0.9,", "0.5,"),
                List.of(),
                STANDARD_TEXT);
    }

    @Test
    void rateAndDecayOfGroups() {
        String of = STANDARD_TEXT + " with ParameterGroup(name=table, rateFactor=0.5) with ParameterGroup(name=top,"
                + " rateFactor=1.0, weightDecay=0.1)";
        assertRefused(STANDARD, groups(2, 0.1f), of.replace("=0.5", "=2.0"), groups(0.5f, 0.1f), of);
        assertRefused(STANDARD, groups(0.5f, 0.3f), of.replace("=0.1)", "=0.3)"), groups(0.5f, 0.1f), of);
        assertRefused(STANDARD, List.of(), STANDARD_TEXT, groups(0.5f, 0.1f), of);
    }

    /** An optimizer that was made behind the first run is compared at the second one; ranks without one are left out. */
    @Test
    void laterOptimizers() {
        PipelineMisuseTest.each(Ranks.local(PipelineMisuseTest.RANKS), (rank, setting) -> {
            Parameters parameters = setting.model.parameters;
            boolean second = rank.index() == 1;
            try (AdamW early = new AdamW(parameters, STANDARD)) {
                if (second) {
                    early.close();
                }
                setting.pipeline.run(setting.model, 4);
                assertTrue(parameters.all().stream().allMatch(Parameter::hasGradient));
                Config own = second ? STANDARD.withWeightDecay(0) : STANDARD;
                early.close();
                try (AdamW late = new AdamW(parameters, own)) {
                    late.step(1e-3f);
                    assertThrown(
                            IllegalStateException.class,
                            text(STANDARD_TEXT.replace("weightDecay=0.01", "weightDecay=0.0"), STANDARD_TEXT),
                            () -> setting.pipeline.run(setting.model, 4));
                }
            }
        });
    }
}
