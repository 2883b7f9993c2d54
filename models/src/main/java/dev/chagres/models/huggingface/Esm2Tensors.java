package dev.chagres.models.huggingface;

import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2Base.Pooler;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Which tensors of an {@code EsmForMaskedLM} make which parameters of an {@link dev.chagres.models.esm.Esm2}, and so those with a classifier.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the module tree of transformers 5.17 {@code modeling_esm.py}, and what its {@code save_pretrained} writes.
 */
final class Esm2Tensors {
    static final String PREFIX = "esm.";
    static final String POOLER = "esm.pooler.dense.weight";
    static final String EMBEDDING = "esm.embeddings.word_embeddings.weight";
    static final String TIED_DECODER = "lm_head.decoder.weight";

    private static final String ENCODER = "esm.encoder.layer.";
    private static final String FREQUENCIES = "rotary_embeddings.inv_freq";

    private Esm2Tensors() {}

    /** Returns all parameters of an {@link dev.chagres.models.esm.Esm2}. */
    static List<Target> targets(Esm2Config config) {
        List<Target> all = encoder(config);
        long hidden = config.hidden();
        linear(all, "head.dense", sizes(hidden, hidden), "lm_head.dense");
        norm(all, "head.norm", hidden, "lm_head.layer_norm");
        all.add(new Target("head.decoder.bias", sizes(EsmVocabulary.SIZE), List.of("lm_head.bias"), Padding.LOWEST));
        return all;
    }

    /** Returns all parameters of an {@link dev.chagres.models.esm.Esm2Classifier}. */
    static List<Target> targets(Esm2ClassifierConfig config) {
        List<Target> all = encoder(config.encoder());
        long hidden = config.encoder().hidden();
        boolean tokens = config.task() == Esm2ClassifierConfig.Task.TOKENS;
        if (!tokens) {
            linear(all, "classifier.dense", sizes(hidden, hidden), "classifier.dense");
        }
        String last = tokens ? "classifier" : "classifier.out_proj";
        all.add(new Target(
                "classifier.projection.weight",
                sizes(config.labels(), hidden),
                List.of(last + ".weight"),
                Padding.ZEROS));
        all.add(new Target(
                "classifier.projection.bias", sizes(config.labels()), List.of(last + ".bias"), Padding.ZEROS));
        return all;
    }

    /** Returns all parameters of an {@link dev.chagres.models.esm.Esm2Base}. */
    static List<Target> targets(Esm2Config config, Pooler pooler) {
        List<Target> all = encoder(config);
        if (pooler == Pooler.FIRST_TOKEN) {
            linear(all, "pooler.dense", sizes(config.hidden(), config.hidden()), "esm.pooler.dense");
        }
        return all;
    }

    /** Returns the same under the names that a model without a head has. */
    static List<Target> withoutPrefix(List<Target> targets) {
        return targets.stream()
                .map(target -> new Target(
                        target.parameter(),
                        target.parts().stream()
                                .map(part -> new Part(withoutPrefix(part.tensor()), part.sizes()))
                                .toList(),
                        target.padding()))
                .toList();
    }

    static String withoutPrefix(String tensor) {
        return tensor.startsWith(PREFIX) ? tensor.substring(PREFIX.length()) : tensor;
    }

    /** Returns the parameters of what all heads read. */
    static List<Target> encoder(Esm2Config config) {
        long hidden = config.hidden();
        long inner = config.inner();
        List<Target> all = new ArrayList<>();
        all.add(new Target("embedding.weight", sizes(EsmVocabulary.SIZE, hidden), List.of(EMBEDDING), Padding.ZEROS));
        for (int i = 0; i < config.layers(); i++) {
            String own = "layers." + i + ".";
            String theirs = ENCODER + i + ".";
            norm(all, own + "attention.qkv.norm", hidden, theirs + "attention.LayerNorm");
            linear(
                    all,
                    own + "attention.qkv.linear",
                    sizes(hidden, hidden),
                    theirs + "attention.self.query",
                    theirs + "attention.self.key",
                    theirs + "attention.self.value");
            linear(all, own + "attention.projection", sizes(hidden, hidden), theirs + "attention.output.dense");
            norm(all, own + "mlp.norm", hidden, theirs + "LayerNorm");
            linear(all, own + "mlp.fc1", sizes(inner, hidden), theirs + "intermediate.dense");
            linear(all, own + "mlp.fc2", sizes(hidden, inner), theirs + "output.dense");
        }
        norm(all, "norm", hidden, "esm.encoder.emb_layer_norm_after");
        return all;
    }

    /** Returns a tensor of the last layer, without which there are fewer. */
    static String last(Esm2Config config) {
        return ENCODER + (config.layers() - 1) + ".output.dense.bias";
    }

    private static long[] sizes(long... sizes) {
        return sizes;
    }

    private static void norm(List<Target> all, String parameter, long hidden, String tensor) {
        linear(all, parameter, sizes(hidden, 1), tensor);
    }

    /** A weight and a bias; one of one column is a vector. */
    private static void linear(List<Target> all, String parameter, long[] sizes, String... tensors) {
        long[] weight = sizes[1] == 1 ? sizes(sizes[0]) : sizes;
        all.add(new Target(parameter + ".weight", weight, behind(".weight", tensors), Padding.NONE));
        all.add(new Target(parameter + ".bias", sizes(sizes[0]), behind(".bias", tensors), Padding.NONE));
    }

    private static List<String> behind(String end, String... tensors) {
        return List.of(tensors).stream().map(tensor -> tensor + end).toList();
    }

    /** Returns the names that a file may have for a tensor: without the prefix, and with the norms' names of transformers 5. */
    static List<String> namesOf(String tensor) {
        List<String> names = new ArrayList<>(List.of(tensor));
        if (tensor.endsWith("LayerNorm.weight")) {
            names.add(tensor.replace("LayerNorm.weight", "LayerNorm.gamma"));
        } else if (tensor.endsWith("LayerNorm.bias")) {
            names.add(tensor.replace("LayerNorm.bias", "LayerNorm.beta"));
        }
        if (tensor.startsWith(PREFIX)) {
            List.copyOf(names).forEach(name -> names.add(name.substring(PREFIX.length())));
        }
        return names;
    }

    /** Returns the names of the frequencies, which are written for each layer, as transformers 4 and 5 read them. */
    static List<String> frequencies(int layers) {
        return IntStream.range(0, layers)
                .mapToObj(i -> ENCODER + i + ".attention.self." + FREQUENCIES)
                .toList();
    }

    static boolean isFrequencies(String tensor) {
        return tensor.endsWith(FREQUENCIES);
    }

    /** Returns whether a tensor belongs to what a masked-language model does not compute. */
    static boolean isUnused(String tensor) {
        return switch (withoutPrefix(tensor)) {
            case "contact_head.regression.weight",
                    "contact_head.regression.bias",
                    "embeddings.position_ids",
                    "embeddings.position_embeddings.weight",
                    "pooler.dense.weight",
                    "pooler.dense.bias" -> true;
            default -> false;
        };
    }
}
