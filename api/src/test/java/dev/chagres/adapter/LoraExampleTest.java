package dev.chagres.adapter;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Sequential;
import org.junit.jupiter.api.Test;

class LoraExampleTest {
    private static final TransformerLayerConfig ENCODER =
            TransformerLayerConfig.encoder(64, AttentionConfig.of(4, 16, AttentionMask.none()));

    @Test
    void adaptsQueryAndValue() {
        // @start region="lora"
        ModelPlan plan = new ModelPlan();
        plan.adapt(LoraConfig.of(16, "query", "value")
                .withAlpha(32)
                .withDropout(0.05f)
                .withTrained("head"));
        Layer layers = Sequential.of(2, i -> new TransformerLayer(ENCODER, plan.group("layers." + i)));
        Layer head = new Linear(64, 10, Initializer.normal(0.02f), plan.group("head"));
        // @end
        assertEquals(
                2 * (2 * 16 * 64 + 2 * 64 * 16) + 650,
                plan.parameters().stream()
                        .filter(Parameter::isTrained)
                        .mapToLong(parameter -> parameter.shape().count())
                        .sum());
        assertEquals(true, layers.requiresGradient() && head.requiresGradient());
    }
}
