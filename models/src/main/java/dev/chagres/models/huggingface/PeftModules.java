package dev.chagres.models.huggingface;

import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.parameter.LoraConfig;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The modules of an ESM-2 of transformers that have a weight, and the products here that they are: targets of adapters by name.
 *
 * <p>Threading: immutable.
 */
final class PeftModules {
    static final String PREFIX = "base_model.model.";
    static final String WEIGHT = ".weight";
    static final String A = ".lora_A";
    static final String B = ".lora_B";

    /** A product, whose sections are modules of transformers. */
    private record Product(String name, List<String> sections, List<String> modules, long inputs, long outputs) {}

    private final @Nullable Esm2ClassifierConfig classifier;
    private final List<Product> products = new ArrayList<>();
    private final Map<String, @Nullable String> all = new LinkedHashMap<>();

    PeftModules(Esm2Config sizes, @Nullable Esm2ClassifierConfig classifier) {
        this.classifier = classifier;
        all.put("esm.embeddings.word_embeddings", null);
        long hidden = sizes.hidden();
        for (int i = 0; i < sizes.layers(); i++) {
            String own = "layers." + i + ".";
            String theirs = "esm.encoder.layer." + i + ".";
            add(
                    own + "attention.qkv.linear",
                    List.of(".query", ".key", ".value"),
                    List.of(
                            theirs + "attention.self.query",
                            theirs + "attention.self.key",
                            theirs + "attention.self.value"),
                    hidden,
                    hidden);
            add(own + "attention.projection", theirs + "attention.output.dense", hidden, hidden);
            add(own + "mlp.fc1", theirs + "intermediate.dense", hidden, sizes.inner());
            add(own + "mlp.fc2", theirs + "output.dense", sizes.inner(), hidden);
        }
        all.put("esm.contact_head.regression", null);
        if (classifier == null) {
            add("head.dense", "lm_head.dense", hidden, hidden);
            all.put("lm_head.decoder", null);
        } else if (classifier.task() == Esm2ClassifierConfig.Task.SEQUENCES) {
            add("classifier.dense", "classifier.dense", hidden, hidden);
            all.put("classifier.out_proj", null); // here it has further rows, which fill it up
        } else {
            all.put("classifier", null);
        }
    }

    private void add(String product, String module, long inputs, long outputs) {
        add(product, List.of(""), List.of(module), inputs, outputs);
    }

    private void add(String product, List<String> sections, List<String> modules, long inputs, long outputs) {
        products.add(new Product(product, sections, modules, inputs, outputs));
        for (int i = 0; i < modules.size(); i++) {
            all.put(modules.get(i), product + sections.get(i));
        }
    }

    /** Returns the names of all modules with a weight, and of the products that they are; null of those that cannot have adapters. */
    Map<String, @Nullable String> all() {
        return all;
    }

    /** Returns the group of the head's parameters; null where the head is that of the masked-language model. */
    @Nullable
    String head() {
        return classifier == null ? null : "classifier";
    }

    /** Returns what {@code task_type} may say, the usual one first. */
    List<String> tasks() {
        if (classifier == null) {
            return List.of("FEATURE_EXTRACTION");
        }
        return List.of(classifier.task() == Esm2ClassifierConfig.Task.SEQUENCES ? "SEQ_CLS" : "TOKEN_CLS");
    }

    /** Returns the names by which PEFT means the targets: short ones where they are adapted in each layer. */
    List<String> targets(LoraConfig lora) {
        List<String> adapted = all.entrySet().stream()
                .filter(module -> module.getValue() != null && lora.isTarget(module.getValue()))
                .map(Map.Entry::getKey)
                .toList();
        List<String> names = new ArrayList<>();
        List<String> left = new ArrayList<>(adapted);
        for (String end :
                List.of("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")) {
            List<String> meant = all.keySet().stream()
                    .filter(module -> module.endsWith("." + end))
                    .toList();
            if (adapted.containsAll(meant) && left.removeAll(meant)) {
                names.add(end);
            }
        }
        names.addAll(left);
        return names;
    }

    /** Returns the parameters that PEFT saves, and the tensors that make them. */
    List<Target> tensors(LoraConfig lora) {
        List<Target> tensors = new ArrayList<>();
        for (Product product : products) {
            List<String> adapted = new ArrayList<>();
            for (int i = 0; i < product.modules.size(); i++) {
                if (lora.isTarget(product.name + product.sections.get(i))) {
                    adapted.add(PREFIX + product.modules.get(i));
                }
            }
            if (!adapted.isEmpty()) {
                tensors.add(target(product.name + A, adapted, A + WEIGHT, lora.rank(), product.inputs));
                tensors.add(target(product.name + B, adapted, B + WEIGHT, product.outputs, lora.rank()));
            }
        }
        Esm2ClassifierConfig config = classifier;
        if (config != null && !lora.trained().isEmpty()) {
            Esm2Tensors.targets(config).stream()
                    .filter(target -> target.parameter().startsWith("classifier."))
                    .map(target -> new Target(
                            target.parameter(),
                            target.parts().stream()
                                    .map(part -> new Part(PREFIX + part.tensor(), part.sizes()))
                                    .toList(),
                            target.padding()))
                    .forEach(tensors::add);
        }
        return tensors;
    }

    private static Target target(String parameter, List<String> modules, String end, long rows, long columns) {
        return new Target(
                parameter,
                new long[] {rows, columns},
                modules.stream().map(module -> module + end).toList(),
                Padding.NONE);
    }

    /** Returns whether a parameter is one of adapters. */
    static boolean isAdapter(String parameter) {
        return parameter.endsWith(A) || parameter.endsWith(B);
    }
}
