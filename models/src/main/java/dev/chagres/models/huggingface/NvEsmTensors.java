package dev.chagres.models.huggingface;

import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Target.Groups;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import java.util.ArrayList;
import java.util.List;

/**
 * Which tensors of an {@code NVEsmForMaskedLM} make which parameters of an {@link dev.chagres.models.esm.Esm2}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code modeling_esm_te.py} and {@code convert.py} of NVIDIA's BioNeMo recipes.
 */
final class NvEsmTensors {
    static final String EMBEDDING = "model.embeddings.word_embeddings.weight";

    private static final String LAYER = "model.encoder.layers.";

    private NvEsmTensors() {}

    /**
     * Returns all parameters.
     *
     * @param heads of the weight of queries, keys and values, whose rows are interleaved; 0 where they are not
     */
    static List<Target> targets(Esm2Config config, int heads) {
        long hidden = config.hidden();
        long inner = config.inner();
        Groups groups = heads == 0 ? null : new Groups(heads, 1);
        List<Target> all = new ArrayList<>();
        all.add(new Target("embedding.weight", sizes(EsmVocabulary.SIZE, hidden), List.of(EMBEDDING), Padding.ZEROS));
        for (int i = 0; i < config.layers(); i++) {
            String own = "layers." + i + ".";
            String qkv = LAYER + i + ".self_attention.layernorm_qkv.";
            String mlp = LAYER + i + ".layernorm_mlp.";
            norm(all, own + "attention.qkv.norm", hidden, qkv + "layer_norm_");
            all.add(new Target(
                    own + "attention.qkv.linear.weight",
                    List.of(new Part(qkv + "weight", 3 * hidden, hidden)),
                    Padding.NONE,
                    groups));
            all.add(new Target(
                    own + "attention.qkv.linear.bias",
                    List.of(new Part(qkv + "bias", 3 * hidden)),
                    Padding.NONE,
                    groups));
            linear(all, own + "attention.projection", hidden, hidden, LAYER + i + ".self_attention.proj.");
            norm(all, own + "mlp.norm", hidden, mlp + "layer_norm_");
            linear(all, own + "mlp.fc1", inner, hidden, mlp + "fc1_");
            linear(all, own + "mlp.fc2", hidden, inner, mlp + "fc2_");
        }
        norm(all, "norm", hidden, "model.encoder.emb_layer_norm_after.");
        linear(all, "head.dense", hidden, hidden, "lm_head.dense.");
        norm(all, "head.norm", hidden, "lm_head.decoder.layer_norm_");
        all.add(new Target(
                "head.decoder.bias", sizes(EsmVocabulary.SIZE), List.of("lm_head.decoder.bias"), Padding.LOWEST));
        return all;
    }

    /** Returns a tensor of the last layer, without which there are fewer. */
    static String last(Esm2Config config) {
        return LAYER + (config.layers() - 1) + ".layernorm_mlp.fc2_bias";
    }

    private static long[] sizes(long... sizes) {
        return sizes;
    }

    private static void norm(List<Target> all, String parameter, long hidden, String tensor) {
        all.add(new Target(parameter + ".weight", sizes(hidden), List.of(tensor + "weight"), Padding.NONE));
        all.add(new Target(parameter + ".bias", sizes(hidden), List.of(tensor + "bias"), Padding.NONE));
    }

    private static void linear(List<Target> all, String parameter, long rows, long columns, String tensor) {
        all.add(new Target(parameter + ".weight", sizes(rows, columns), List.of(tensor + "weight"), Padding.NONE));
        all.add(new Target(parameter + ".bias", sizes(rows), List.of(tensor + "bias"), Padding.NONE));
    }
}
