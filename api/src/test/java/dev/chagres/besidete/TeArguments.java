package dev.chagres.besidete;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.besidete.LayerCase.Scores;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.optim.AdamW.Config;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.te.Activation;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.te.QkvFormat;
import java.io.IOException;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Locale;

/** Writes what {@code te.TransformerLayer} of PyTorch is to be called with, as JSON. */
final class TeArguments {
    private TeArguments() {}

    /** Writes the named arguments of its constructor. */
    static String constructor(LayerCase drawn) {
        TransformerLayerConfig config = drawn.config();
        AttentionConfig attention = config.attention();
        MlpConfig mlp = config.mlp();
        NormConfig norm = config.norm();
        CrossAttentionConfig cross = config.crossAttention();
        QkNorm qkNorm = attention.qkNorm();
        return json(out -> {
            out.writeNumberField("hidden_size", config.hidden());
            out.writeNumberField("ffn_hidden_size", mlp.inner());
            out.writeNumberField("num_attention_heads", attention.heads());
            out.writeNumberField("num_gqa_groups", attention.keyHeads());
            out.writeNumberField("kv_channels", attention.headDim());
            out.writeNumberField("layernorm_epsilon", norm.epsilon());
            out.writeStringField("normalization", word(norm.kind()));
            out.writeBooleanField("zero_centered_gamma", norm.gamma() == Gamma.ZERO_CENTERED);
            out.writeStringField("layer_type", cross == null ? "encoder" : "decoder");
            if (drawn.scores() == Scores.MASK) {
                out.writeStringField("self_attn_mask_type", "arbitrary");
            } else {
                mask(out, "self_attn_mask_type", "window_size", attention.mask(), isPadded(drawn.tokens()));
            }
            if (cross != null) {
                mask(
                        out,
                        "enc_dec_attn_mask_type",
                        "enc_dec_window_size",
                        cross.attention().mask(),
                        isPadded(drawn.tokens()) || isPadded(drawn.keys()));
            }
            out.writeNumberField("softcap", attention.softcap());
            out.writeStringField(
                    "softmax_type",
                    attention.softmaxType().name().toLowerCase(Locale.ROOT).replace('_', '-'));
            if (!qkNorm.isNone()) {
                out.writeStringField(
                        "qk_norm_type",
                        switch (qkNorm.kind()) {
                            case L2 -> "L2Normalization";
                            case RMS_NORM -> "RMSNorm";
                            case LAYER_NORM -> "LayerNorm";
                            case NONE -> throw new AssertionError(qkNorm);
                        });
                out.writeNumberField("qk_norm_eps", qkNorm.epsilon());
                out.writeBooleanField("qk_norm_before_rope", qkNorm.place() == QkNorm.Place.BEFORE_ROTATION);
            }
            out.writeBooleanField("apply_residual_connection_post_layernorm", config.residual() == ResidualSource.NORM);
            out.writeBooleanField("output_layernorm", config.normPlacement() == NormPlacement.OUTPUT);
            out.writeBooleanField("parallel_attention_mlp", config.branchOrder() == BranchOrder.PARALLEL);
            out.writeBooleanField("bias", config.bias() == Bias.PRESENT);
            out.writeStringField("activation", word(mlp.activation()));
            if (mlp.activation() == Activation.CLAMPED_SWIGLU) {
                out.writeObjectFieldStart("activation_params");
                out.writeNumberField("limit", mlp.clampedSwiglu().limit());
                out.writeNumberField("alpha", mlp.clampedSwiglu().alpha());
                out.writeNumberField("glu_linear_offset", mlp.clampedSwiglu().linearOffset());
                out.writeEndObject();
            }
            out.writeStringField("attn_input_format", word(drawn.tokens().format()));
            RotaryConfig rotary = drawn.rotary();
            out.writeBooleanField("rotary_pos_interleaved", rotary != null && rotary.pairing() == Pairing.INTERLEAVED);
        });
    }

    /** Writes what the script makes the inputs and the call of. */
    static String call(LayerCase drawn) {
        RotaryConfig rotary = drawn.rotary();
        return json(out -> {
            out.writeStringField("kind", "layer");
            out.writeStringField("precision", drawn.precision().word());
            TeRecipe.write(out, drawn.recipe());
            out.writeNumberField("seed", drawn.seed());
            tokens(out, "", drawn.tokens());
            tokens(out, "memory_", drawn.keys());
            out.writeStringField("scores", drawn.scores().word());
            out.writeBooleanField("deterministic", drawn.isDeterministic());
            numbers(out, "steps", drawn.steps());
            numbers(out, "gradients", drawn.gradients());
            if (drawn.course().updates() > 0) {
                out.writeObjectFieldStart("adam");
                adam(out, LayerWriter.ADAM, LayerWriter.RATE, DType.BFLOAT16);
                out.writeEndObject();
            }
            words(out, "options", CaseOption.of(drawn));
            if (rotary != null) {
                out.writeObjectFieldStart("rotary");
                rotary(out, rotary);
                out.writeEndObject();
                out.writeNumberField("start", drawn.start());
            }
        });
    }

    /** Writes the arguments of {@code te.optimizers.FusedAdam} for weights of a type. */
    static void adam(JsonGenerator out, Config config, float rate, DType dtype) throws IOException {
        out.writeNumberField("lr", rate);
        floats(out, "betas", List.of(config.beta1(), config.beta2()));
        out.writeNumberField("eps", config.epsilon());
        out.writeNumberField("weight_decay", config.weightDecay());
        out.writeBooleanField("bias_correction", config.biasCorrection() == BiasCorrection.YES);
        out.writeBooleanField("adam_w_mode", config.decayMode() == WeightDecay.DECOUPLED);
        out.writeBooleanField("master_weights", dtype != DType.FLOAT32);
        out.writeBooleanField(
                "store_param_remainders", dtype != DType.FLOAT32 && config.masters() == Masters.REMAINDER);
        String moments = config.momentDType() == DType.FLOAT32 ? "float32" : "bfloat16";
        out.writeStringField("exp_avg_dtype", moments);
        out.writeStringField("exp_avg_sq_dtype", moments);
    }

    /** Writes the arguments of {@code RotaryPositionEmbedding}. */
    static void rotary(JsonGenerator out, RotaryConfig rotary) throws IOException {
        out.writeNumberField("dim", rotary.headDim());
        out.writeNumberField("rotary_percent", rotary.rotatedDim() / (double) rotary.headDim());
        out.writeNumberField("rotary_base", rotary.base());
        if (rotary.interpolationFactor() != 1) {
            out.writeNumberField("seq_len_interpolation_factor", rotary.interpolationFactor());
        }
        out.writeBooleanField("interleaved", rotary.pairing() == Pairing.INTERLEAVED);
    }

    static String word(NormConfig.Kind kind) {
        return kind == NormConfig.Kind.RMS_NORM ? "RMSNorm" : "LayerNorm";
    }

    /** Returns the name in small letters, as TE has activations and formats. */
    static String word(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    private static boolean isPadded(TokenRows rows) {
        return rows.format() == QkvFormat.THD || rows.lengths().stream().anyMatch(length -> length != rows.padded());
    }

    private static void mask(JsonGenerator out, String typeName, String windowName, AttentionMask mask, boolean padding)
            throws IOException {
        out.writeStringField(
                typeName,
                switch (mask.kind()) {
                    case NONE -> padding ? "padding" : "no_mask";
                    case CAUSAL -> padding ? "padding_causal" : "causal";
                    case CAUSAL_BOTTOM_RIGHT -> padding ? "padding_causal_bottom_right" : "causal_bottom_right";
                });
        out.writeArrayFieldStart(windowName);
        out.writeNumber(mask.windowLeft());
        out.writeNumber(mask.kind() == AttentionMask.Kind.NONE ? mask.windowRight() : 0);
        out.writeEndArray();
    }

    private static void tokens(JsonGenerator out, String prefix, TokenRows rows) throws IOException {
        numbers(out, prefix + "lengths", rows.lengths());
        numbers(out, prefix + "gaps", rows.gaps());
        out.writeNumberField(prefix + "padded", rows.padded());
    }

    static void numbers(JsonGenerator out, String name, List<Integer> numbers) throws IOException {
        out.writeArrayFieldStart(name);
        for (int number : numbers) {
            out.writeNumber(number);
        }
        out.writeEndArray();
    }

    private static void floats(JsonGenerator out, String name, List<Float> numbers) throws IOException {
        out.writeArrayFieldStart(name);
        for (float number : numbers) {
            out.writeNumber(number);
        }
        out.writeEndArray();
    }

    static void words(JsonGenerator out, String name, List<String> words) throws IOException {
        out.writeArrayFieldStart(name);
        for (String word : words) {
            out.writeString(word);
        }
        out.writeEndArray();
    }

    /** Writes fields. */
    interface Fields {
        void write(JsonGenerator out) throws IOException;
    }

    static String json(Fields fields) {
        StringWriter text = new StringWriter();
        try (JsonGenerator out = new JsonFactory().createGenerator(text)) {
            out.writeStartObject();
            fields.write(out);
            out.writeEndObject();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return text.toString();
    }
}
