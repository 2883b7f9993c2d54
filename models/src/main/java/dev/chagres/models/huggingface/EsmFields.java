package dev.chagres.models.huggingface;

import dev.chagres.layer.GeluForm;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.Esm2Form.Masks;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import java.math.BigDecimal;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * The fields of an {@code EsmConfig} of transformers: what they say of an {@link Esm2Config}, and a refusal of each that says something else.
 * A field that is not there has the default of transformers 5.17.
 *
 * <p>Threading: immutable.
 */
record EsmFields(JsonObject json) {
    /** Returns sizes and form, whose frequencies are those of {@code rope_theta}. */
    Esm2Config config() {
        refuseOtherModels();
        int hidden = ModelFields.size(json, "hidden_size", 768);
        int heads = ModelFields.size(json, "num_attention_heads", 12);
        if (hidden % heads != 0) {
            throw json.refused("num_attention_heads", "a divisor of hidden_size, " + hidden);
        }
        int context = ModelFields.context(json, 1026);
        int inner = ModelFields.size(json, "intermediate_size", 3072);
        Masks masks = json.flag("token_dropout", false) ? Masks.DROPPED : Masks.EMBEDDED;
        if (masks == Masks.DROPPED && !json.has("mask_token_id")) {
            throw json.refused("mask_token_id", EsmVocabulary.MASK + ", which token_dropout needs");
        }
        float epsilon = ModelFields.epsilon(json, "layer_norm_eps", 1e-12);
        Esm2Form form =
                new Esm2Form(isNvidia() ? GeluForm.TANH : GeluForm.ERF, GeluForm.ERF, masks, epsilon, List.of());
        return new Esm2Config(
                ModelFields.layers(json, 12), hidden, heads, context, inner, form, Recomputation.ACTIVATION);
    }

    /**
     * Returns what the scores of a classifier mean. Where the file does not say, transformers goes by the labels: of one label regression, else
     * one class is chosen.
     */
    Problem problem(Task task) {
        String single = "single_label_classification";
        String given = json.text("problem_type", "");
        if (task == Task.TOKENS) {
            if (!given.isEmpty() && !given.equals(single)) {
                throw json.refused("problem_type", single + " or none");
            }
            return Problem.SINGLE_LABEL;
        }
        return switch (given) {
            case "" -> labels() == 1 ? Problem.REGRESSION : Problem.SINGLE_LABEL;
            case "single_label_classification" -> Problem.SINGLE_LABEL;
            case "multi_label_classification" -> Problem.MULTI_LABEL;
            case "regression" -> Problem.REGRESSION;
            default -> throw json.refused("problem_type", single + ", multi_label_classification, regression or none");
        };
    }

    /** Returns the name that a file has for a problem. */
    static String nameOf(Problem problem) {
        return switch (problem) {
            case SINGLE_LABEL -> "single_label_classification";
            case MULTI_LABEL -> "multi_label_classification";
            case REGRESSION -> "regression";
        };
    }

    /** Returns the number of classes, or of numbers. */
    int labels() {
        int usual = json.fields().get("id2label") instanceof Map<?, ?> names ? names.size() : 2;
        int labels = ModelFields.size(json, "num_labels", usual);
        if (json.has("id2label") && labels != usual) {
            throw json.refused("num_labels", usual + ", the labels of id2label");
        }
        return labels;
    }

    /** Returns sizes, form, classes and loss of a classifier. */
    Esm2ClassifierConfig classifier(Esm2Config encoder, Task task) {
        Problem problem = problem(task);
        if (labels() < 2 && problem == Problem.SINGLE_LABEL) {
            throw json.refused(json.has("num_labels") ? "num_labels" : "id2label", "two labels or more");
        }
        return new Esm2ClassifierConfig(encoder, task, labels(), problem);
    }

    /** Returns the base of the frequencies, where the tensors have none. */
    double ropeTheta() {
        return ModelFields.theta(json, 10_000);
    }

    private void refuseOtherModels() {
        expect("model_type", "", isNvidia() ? "nv_esm" : "esm");
        if (isNvidia()) {
            expect("encoder_activation", "gelu", "gelu");
            flagOnly("fuse_qkv_params", "true: one weight has queries, keys and values");
        }
        expect("position_embedding_type", "absolute", "rotary");
        expect("hidden_act", "gelu", "gelu");
        ModelFields.never(json, "is_folding_model", "ESMFold has parts that are not supported");
        ModelFields.never(json, "emb_layer_norm_before", "ESM-1b and ESM-1v have a norm there, ESM-2 has none");
        ModelFields.never(json, "is_decoder", "ESM-2 is an encoder");
        ModelFields.never(json, "add_cross_attention", "ESM-2 is an encoder");
        if (!json.flag("tie_word_embeddings", true)) {
            throw json.refused("tie_word_embeddings", "true: the decoder's weight is the embedding's table");
        }
        for (String dropout : List.of("hidden_dropout_prob", "attention_probs_dropout_prob")) {
            if (json.number(dropout, 0.1) != 0) {
                throw json.refused(dropout, "0, as in the published models (transformers' default is 0.1)");
            }
        }
        refuseOtherVocabularies();
        for (String absent : List.of("quantization_config", "rope_scaling", "rope_parameters", "esmfold_config")) {
            if (json.has(absent)) {
                throw json.refused(absent, "none: it is not supported");
            }
        }
        if (json.has("pruned_heads")
                && !Objects.toString(json.fields().get("pruned_heads")).equals("{}")) {
            throw json.refused("pruned_heads", "none: it is not supported");
        }
    }

    /** Returns whether the model is one that NVIDIA's recipes have converted. */
    private boolean isNvidia() {
        return EsmArchitecture.of(json) == EsmArchitecture.NV_MASKED_LM;
    }

    /** Returns whether a weight has a head's queries, keys and values one after the other, before those of the next head. */
    boolean isInterleaved() {
        return isNvidia() && json.flag("qkv_weight_interleaved", true);
    }

    private void flagOnly(String field, String expected) {
        if (!json.flag(field, true)) {
            throw json.refused(field, expected);
        }
    }

    private void refuseOtherVocabularies() {
        token("vocab_size", EsmVocabulary.SIZE);
        if (!json.has("vocab_size")) {
            throw json.refused("vocab_size", String.valueOf(EsmVocabulary.SIZE));
        }
        token("mask_token_id", EsmVocabulary.MASK);
        token("pad_token_id", EsmVocabulary.PAD);
        token("bos_token_id", EsmVocabulary.CLS);
        token("eos_token_id", EsmVocabulary.EOS);
        if (json.has("vocab_list") && !json.texts("vocab_list").equals(EsmVocabulary.tokens())) {
            throw json.refused("vocab_list", "the 33 tokens of ESM-2 or none");
        }
    }

    private void token(String field, int only) {
        if (json.has(field) && !BigDecimal.valueOf(only).equals(json.fields().get(field))) {
            throw json.refused(field, String.valueOf(only));
        }
    }

    private void expect(String field, String usual, String only) {
        if (!json.text(field, usual).equals(only)) {
            throw json.refused(
                    field, only + (usual.isEmpty() || usual.equals(only) ? "" : " (the default is " + usual + ")"));
        }
    }
}
