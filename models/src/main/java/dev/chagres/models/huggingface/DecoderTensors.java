package dev.chagres.models.huggingface;

import dev.chagres.layer.Bias;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.huggingface.Target.Groups;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import java.util.ArrayList;
import java.util.List;

/**
 * Which tensors of a decoder of transformers, or of NVIDIA's recipes, make which parameters of a {@link dev.chagres.models.decoder.Decoder}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the module trees of transformers 5.17 {@code modeling_llama.py}, {@code modeling_qwen2.py}, {@code modeling_qwen3.py} and {@code
 * modeling_mistral.py}.
 */
final class DecoderTensors {
    static final String EMBEDDING = "model.embed_tokens.weight";
    static final String HEAD = "lm_head.weight";

    private static final String PREFIX = "model.";
    private static final String LAYERS = "model.layers.";

    private final DecoderSizes sizes;
    private final DecoderForm form;
    private final DecoderLayout layout;
    private final List<Target> all = new ArrayList<>();

    private DecoderTensors(DecoderConfig config, DecoderLayout layout) {
        sizes = config.sizes();
        form = config.form();
        this.layout = layout;
    }

    /** Returns all parameters. */
    static List<Target> targets(DecoderConfig config, DecoderLayout layout) {
        DecoderTensors tensors = new DecoderTensors(config, layout);
        tensors.declare();
        return tensors.all;
    }

    /** Returns a tensor that the last layer has. */
    static String last(DecoderConfig config, DecoderLayout layout) {
        return LAYERS
                + (config.sizes().layers() - 1)
                + (layout == DecoderLayout.NVIDIA ? ".layernorm_mlp.fc2_weight" : ".mlp.down_proj.weight");
    }

    /** Returns the names that a folder may have for a tensor: also without the prefix, as of a base model that was saved alone. */
    static List<String> namesOf(String tensor) {
        return tensor.startsWith(PREFIX) ? List.of(tensor, tensor.substring(PREFIX.length())) : List.of(tensor);
    }

    /** Returns whether a tensor only repeats what the configuration says: frequencies, which old files have. */
    static boolean isUnused(String tensor) {
        return tensor.endsWith(".rotary_emb.inv_freq");
    }

    private void declare() {
        vocabulary("embedding.weight", EMBEDDING);
        for (int i = 0; i < sizes.layers(); i++) {
            if (layout == DecoderLayout.NVIDIA) {
                fusedLayer("layers." + i + ".", LAYERS + i + ".");
            } else {
                layer("layers." + i + ".", LAYERS + i + ".");
            }
        }
        vector("norm.weight", sizes.hidden(), "model.norm.weight");
        if (form.head() == DecoderForm.Head.SEPARATE) {
            vocabulary("head.weight", HEAD);
        }
    }

    private void layer(String own, String theirs) {
        long hidden = sizes.hidden();
        long inner = sizes.inner();
        long width = (long) sizes.heads() * sizes.headDim();
        long keyWidth = (long) sizes.keyHeads() * sizes.headDim();
        String attention = theirs + "self_attn.";
        String mlp = theirs + "mlp.";
        vector(own + "attention.qkv.norm.weight", hidden, theirs + "input_layernorm.weight");
        linear(
                own + "attention.qkv.linear",
                form.attentionBias(),
                new Part(attention + "q_proj", width, hidden),
                new Part(attention + "k_proj", keyWidth, hidden),
                new Part(attention + "v_proj", keyWidth, hidden));
        if (form.hasHeadNorms()) {
            vector(own + "attention.q_norm.weight", sizes.headDim(), attention + "q_norm.weight");
            vector(own + "attention.k_norm.weight", sizes.headDim(), attention + "k_norm.weight");
        }
        linear(own + "attention.projection", form.projectionBias(), new Part(attention + "o_proj", hidden, width));
        vector(own + "mlp.norm.weight", hidden, theirs + "post_attention_layernorm.weight");
        linear(
                own + "mlp.fc1",
                form.mlpBias(),
                new Part(mlp + "gate_proj", inner, hidden),
                new Part(mlp + "up_proj", inner, hidden));
        linear(own + "mlp.fc2", form.mlpBias(), new Part(mlp + "down_proj", hidden, inner));
    }

    /** NVIDIA's names: a product has the norm before it, and all its sections. */
    private void fusedLayer(String own, String theirs) {
        long hidden = sizes.hidden();
        long inner = sizes.inner();
        long width = (long) sizes.heads() * sizes.headDim();
        long keyWidth = (long) sizes.keyHeads() * sizes.headDim();
        String attention = theirs + "self_attention.";
        String mlp = theirs + "layernorm_mlp.";
        vector(own + "attention.qkv.norm.weight", hidden, attention + "layernorm_qkv.layer_norm_weight");
        all.add(new Target(
                own + "attention.qkv.linear.weight",
                List.of(new Part(attention + "layernorm_qkv.weight", width + 2 * keyWidth, hidden)),
                Padding.NONE,
                new Groups(sizes.keyHeads(), sizes.heads() / sizes.keyHeads())));
        if (form.hasHeadNorms()) {
            vector(own + "attention.q_norm.weight", sizes.headDim(), attention + "q_norm.weight");
            vector(own + "attention.k_norm.weight", sizes.headDim(), attention + "k_norm.weight");
        }
        matrix(own + "attention.projection.weight", attention + "proj.weight", hidden, width);
        vector(own + "mlp.norm.weight", hidden, mlp + "layer_norm_weight");
        matrix(own + "mlp.fc1.weight", mlp + "fc1_weight", 2 * inner, hidden);
        matrix(own + "mlp.fc2.weight", mlp + "fc2_weight", hidden, inner);
    }

    private void matrix(String parameter, String tensor, long rows, long columns) {
        all.add(new Target(parameter, List.of(new Part(tensor, rows, columns)), Padding.NONE));
    }

    private void vocabulary(String parameter, String tensor) {
        all.add(new Target(parameter, List.of(new Part(tensor, sizes.vocabulary(), sizes.hidden())), Padding.ZEROS));
    }

    private void vector(String parameter, long size, String tensor) {
        all.add(new Target(parameter, List.of(new Part(tensor, size)), Padding.NONE));
    }

    private void linear(String parameter, Bias bias, Part... modules) {
        List<Part> weights = new ArrayList<>();
        List<Part> biases = new ArrayList<>();
        for (Part module : modules) {
            weights.add(new Part(module.tensor() + ".weight", module.sizes()));
            biases.add(new Part(module.tensor() + ".bias", module.sizes()[0]));
        }
        all.add(new Target(parameter + ".weight", weights, Padding.NONE));
        if (bias == Bias.PRESENT) {
            all.add(new Target(parameter + ".bias", biases, Padding.NONE));
        }
    }
}
