package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AdamW.Config;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Ranks whose optimizers have other settings are told before the first step. */
@Tag("L0")
@Tag("L2")
class OptimizersOfRanksTest {
    private static final Config STANDARD = Config.standard();
    private static final String STANDARD_TEXT = "AdamW(beta1=0.9, beta2=0.999, epsilon=1.0E-8, weightDecay=0.01,"
            + " decayMode=DECOUPLED, momentDType=FLOAT32, masters=FLOAT32, biasCorrection=YES)";

    /** What ranks keep. */
    private enum Kept {
        DDP,
        ONE,
        THREE;

        Strategy strategy(Rank rank) {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(8, 8, Initializer.normal(0.1f), plan.group("layer"));
            layer.weight();
            if (this == DDP) {
                return DataParallel.of(
                        Parameters.allocate(rank.device(), plan, DType.BFLOAT16, 1), rank.communicator());
            }
            ZeroStage stage = this == ONE ? ZeroStage.ONE : ZeroStage.THREE;
            return FullySharded.allocate(plan, DType.BFLOAT16, 1, stage, rank.communicator());
        }
    }

    private static String text(String on1, String on0, int rank, int other) {
        return "sumGradients: expected optimizers with the same settings on all ranks, since weights would diverge,"
                + " got " + on1 + " on rank " + rank + " and " + on0 + " on rank " + other
                + "; give each optimizer the same config and groups";
    }

    private static String checksum(String names) {
        CRC32C checksum = new CRC32C();
        checksum.update(names.getBytes(StandardCharsets.UTF_8));
        return Long.toHexString(checksum.getValue());
    }

    /** Writes gradients of 1 on rank 0, 2 on rank 1. */
    private static void writeGradients(Parameters parameters, Rank rank) {
        parameters.all().forEach(Parameter::nextGradient);
        float[] gradients = new float[(int) parameters.gradients().count()];
        Arrays.fill(gradients, rank.index() + 1);
        parameters.gradients().set(rank.device().stream(), gradients);
    }

    private static void assertGradients(float expected, Parameters parameters, Rank rank) {
        for (Parameter parameter : parameters.all()) {
            for (float gradient : parameter.gradient().toFloats(rank.device().stream())) {
                assertEquals(expected, gradient, parameter.name());
            }
        }
    }

    private static void step(Strategy strategy, AdamW optimizer) {
        strategy.sumGradients();
        optimizer.step(1e-3f);
    }

    static List<Config> others() {
        return List.of(
                STANDARD.withBetas(0.8f, 0.999f),
                STANDARD.withBetas(0.9f, 0.99f),
                STANDARD.withEpsilon(1e-6f),
                STANDARD.withWeightDecay(0),
                STANDARD.withDecayMode(WeightDecay.L2),
                STANDARD.withMomentDType(DType.BFLOAT16),
                STANDARD.withMasters(AdamW.Masters.REMAINDER),
                STANDARD.withBiasCorrection(BiasCorrection.NO));
    }

    @ParameterizedTest
    @MethodSource("others")
    void configs(Config other) {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Strategy strategy = Kept.DDP.strategy(rank);
                    Parameters parameters = strategy.parameters()) {
                String refused;
                try (AdamW optimizer = new AdamW(parameters, rank.index() == 1 ? other : STANDARD);
                        AdamW its = new AdamW(parameters, other)) {
                    refused = text(its.toString(), STANDARD_TEXT, 1, 0);
                    its.close();
                    writeGradients(parameters, rank);
                    assertThrown(IllegalStateException.class, refused, strategy::sumGradients);
                    assertThrown(IllegalStateException.class, refused, strategy::sumGradients);
                    assertThrown(
                            IllegalStateException.class,
                            "gradients: expected the sum over 2 ranks, got only this rank's, by which the ranks'"
                                    + " weights would diverge; call sumGradients() before the norm and the"
                                    + " optimizer's step",
                            () -> optimizer.step(1e-3f));
                }
                try (AdamW same = new AdamW(parameters, other)) {
                    strategy.sumGradients();
                    assertGradients(3, parameters, rank); // summed once, however often it was refused
                    same.step(1e-3f);
                }
            }
        });
    }

    @ParameterizedTest
    @EnumSource(Kept.class)
    void groups(Kept kept) {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            try (Strategy strategy = kept.strategy(rank);
                    Parameters parameters = strategy.parameters()) {
                String end = rank.index() == 2 ? "bias" : "weight";
                List<ParameterGroup> own = List.of(
                        ParameterGroup.of("some", p -> p.name().endsWith(end)).withRateFactor(0.5f));
                try (AdamW optimizer = new AdamW(parameters, STANDARD, own)) {
                    String of = STANDARD_TEXT
                            + " with ParameterGroup(name=some, rateFactor=0.5) of 1 parameter (checksum of"
                            + " their names ";
                    assertThrown(
                            IllegalStateException.class,
                            text(of + checksum("layer.bias\n") + ")", of + checksum("layer.weight\n") + ")", 2, 0),
                            () -> step(strategy, optimizer));
                }
                List<ParameterGroup> same =
                        List.of(ParameterGroup.of("bias", p -> p.name().endsWith("bias")));
                try (AdamW optimizer = new AdamW(parameters, STANDARD, same)) {
                    step(strategy, optimizer);
                    step(strategy, optimizer);
                }
            }
        });
    }

    /** Ranks without an optimizer take part in the comparison, so that no other one waits, and are left out of it. */
    @ParameterizedTest
    @EnumSource(Kept.class)
    void ranksWithoutAnOptimizer(Kept kept) {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            try (Strategy strategy = kept.strategy(rank);
                    Parameters parameters = strategy.parameters()) {
                AdamW optimizer = rank.index() == 0 ? null : new AdamW(parameters, STANDARD);
                for (int step = 0; step < 4; step++) {
                    strategy.sumGradients();
                    parameters.nextStep();
                }
                if (optimizer != null) {
                    optimizer.close();
                }
            }
        });
    }

    /** An optimizer that was made behind the first sum is compared at the second one. */
    @Test
    void laterOptimizers() {
        DevicesNeeded.assume(3);
        Ranks.local(3).each(rank -> {
            try (Strategy strategy = Kept.ONE.strategy(rank);
                    Parameters parameters = strategy.parameters()) {
                strategy.sumGradients();
                Config own = STANDARD.withEpsilon(rank.index() == 1 ? 1e-4f : 1e-8f);
                try (AdamW optimizer = new AdamW(parameters, own)) {
                    optimizer.step(1e-3f);
                    assertThrown(
                            IllegalStateException.class,
                            text(STANDARD_TEXT.replace("1.0E-8", "1.0E-4"), STANDARD_TEXT, 1, 0),
                            strategy::sumGradients);
                }
            }
        });
    }
}
