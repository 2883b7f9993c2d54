package dev.chagres.besidete;

import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizations;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import java.io.IOException;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/** Writes the recipe that TE's side makes, by the names of TE's recipes. */
final class TeRecipe {
    private TeRecipe() {}

    /** Writes the field {@code recipe}; null for none. */
    static void write(JsonGenerator out, @Nullable Recipe recipe) throws IOException {
        if (recipe == null) {
            out.writeNullField("recipe");
            return;
        }
        out.writeObjectFieldStart("recipe");
        out.writeStringField("class", recipe.getClass().getSimpleName());
        out.writeStringField("fp8_format", recipe.format().name());
        switch (recipe) {
            case DelayedScaling delayed -> delayed(out, delayed);
            case Float8CurrentScaling current -> {
                override(out, current.backwardOverride());
                roles(out, current.quantizations());
                sums(out, "fp8_gemm_fprop", current, Product.FORWARD);
                sums(out, "fp8_gemm_dgrad", current, Product.INPUT_GRADIENT);
                sums(out, "fp8_gemm_wgrad", current, Product.WEIGHT_GRADIENT);
            }
            case Float8BlockScaling block -> {
                override(out, block.backwardOverride());
                roles(out, block.quantizations());
            }
            default -> throw new AssertionError(recipe);
        }
        out.writeEndObject();
    }

    private static void delayed(JsonGenerator out, DelayedScaling recipe) throws IOException {
        out.writeNumberField("margin", recipe.margin());
        out.writeNumberField("amax_history_len", recipe.amaxHistoryLength());
        out.writeStringField(
                "amax_compute_algo", recipe.amaxComputeAlgorithm().name().toLowerCase(Locale.ROOT));
        out.writeBooleanField("fp8_dpa", recipe.attention() != AttentionPrecision.HIGH_PRECISION);
        out.writeBooleanField("fp8_mha", recipe.attention() == AttentionPrecision.FP8_MHA);
    }

    private static void override(JsonGenerator out, BackwardOverride override) throws IOException {
        if (override != BackwardOverride.NONE) {
            out.writeStringField("backward_override", override.name().toLowerCase(Locale.ROOT));
        }
    }

    /** What TE keeps beside the arguments of the constructor. */
    private static void roles(JsonGenerator out, Quantizations quantizations) throws IOException {
        role(out, "fp8_quant_fwd_inp", quantizations.input());
        role(out, "fp8_quant_fwd_weight", quantizations.weight());
        role(out, "fp8_quant_bwd_grad", quantizations.gradient());
    }

    private static void role(JsonGenerator out, String name, QuantizationConfig config) throws IOException {
        out.writeObjectFieldStart(name);
        out.writeBooleanField("power_2_scale", config.scales() == Scales.POWER_OF_2);
        out.writeNumberField("amax_epsilon", config.amaxEpsilon());
        out.writeEndObject();
    }

    private static void sums(JsonGenerator out, String name, Recipe recipe, Product product) throws IOException {
        out.writeObjectFieldStart(name);
        out.writeBooleanField("use_split_accumulator", recipe.accumulator(product) == Accumulator.SPLIT);
        out.writeEndObject();
    }
}
