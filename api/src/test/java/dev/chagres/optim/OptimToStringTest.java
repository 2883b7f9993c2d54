package dev.chagres.optim;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Optimizers show all their numbers: what a log needs to repeat a run. */
@Tag("L0")
class OptimToStringTest {
    @Test
    void everyNumberIsShown() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.ones(), 2, 8);
        plan.declare("b", Initializer.ones(), 2, 8);
        plan.declare("c", Initializer.ones(), 2, 8);
        ParameterGroup slow =
                ParameterGroup.of("slow", one -> one.name().equals("a")).withRateFactor(0.1f);
        ParameterGroup kept =
                ParameterGroup.of("kept", one -> one.name().equals("b")).withWeightDecay(0);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                AdamW plain = new AdamW(parameters, AdamW.Config.standard())) {
            assertEquals(
                    "AdamW(beta1=0.9, beta2=0.999, epsilon=1.0E-8, weightDecay=0.01, decayMode=DECOUPLED, momentDType=FLOAT32,"
                            + " masters=FLOAT32, biasCorrection=YES)",
                    plain.toString());
            plain.close();
            AdamW.Config config = AdamW.Config.standard()
                    .withBetas(0.8f, 0.95f)
                    .withMomentDType(DType.BFLOAT16)
                    .withMasters(Masters.REMAINDER);
            try (AdamW grouped = new AdamW(parameters, config, List.of(slow, kept))) {
                assertEquals("""
                        AdamW(beta1=0.8, beta2=0.95, epsilon=1.0E-8, weightDecay=0.01, decayMode=DECOUPLED, momentDType=BFLOAT16,\
                         masters=REMAINDER, biasCorrection=YES)
                          ParameterGroup(name=slow, rateFactor=0.1)
                          ParameterGroup(name=kept, rateFactor=1.0, weightDecay=0.0)""", grouped.toString());
            }
            LossScaler scaler = new LossScaler(parameters, LossScaler.Config.standard());
            String scaled =
                    "LossScaler(initialScale=65536.0, growthFactor=2.0, backoffFactor=0.5, growthInterval=2000)";
            assertEquals(scaled, scaler.toString());
            assertEquals("GradientNorm(maxNorm=1.5)", new GradientNorm(parameters, 1.5f).toString());
            assertEquals(
                    "GradientNorm(maxNorm=Infinity, scaler=" + scaled + ")",
                    new GradientNorm(scaler, Float.POSITIVE_INFINITY).toString());
        }
    }
}
