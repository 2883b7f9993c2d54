package dev.chagres.models.huggingface;

import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderSizes;
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
 * The modules of a model of transformers that have a weight, and the products here that they are: targets of adapters by name.
 *
 * <p>Threading: immutable.
 */
final class PeftModules {
    static final String PREFIX = "base_model.model.";
    static final String WEIGHT = ".weight";
    static final String A = ".lora_A";
    static final String B = ".lora_B";

    /** A module that is a product, or a section of one: {@code name} is what the product's name has behind it. */
    private record Section(String name, String module, long outputs) {}

    private record Product(String name, long inputs, List<Section> sections) {}

    /** A module with an adapter, the first of its rows in the product's weight, and the adapter's rank and factor. */
    record Adapted(String product, String module, long firstRow, long rows, LoraConfig lora) {}

    /** How a kind of model calls what {@code adapter_config.json} names. */
    private record Words(String layers, List<String> ends, List<String> tasks) {}

    private final Words words;
    private final @Nullable Esm2ClassifierConfig classifier;
    private final List<Product> products = new ArrayList<>();
    private final Map<String, @Nullable String> all = new LinkedHashMap<>();

    private PeftModules(Words words, @Nullable Esm2ClassifierConfig classifier) {
        this.words = words;
        this.classifier = classifier;
    }

    /** Returns those of an ESM-2; the classifier is null where the head is that of the masked-language model. */
    static PeftModules of(Esm2Config sizes, @Nullable Esm2ClassifierConfig classifier) {
        String task = classifier == null
                ? "FEATURE_EXTRACTION"
                : classifier.task() == Esm2ClassifierConfig.Task.SEQUENCES ? "SEQ_CLS" : "TOKEN_CLS";
        var modules = new PeftModules(
                new Words(
                        "layer",
                        List.of(
                                "query",
                                "key",
                                "value",
                                "attention.output.dense",
                                "intermediate.dense",
                                "output.dense"),
                        List.of(task)),
                classifier);
        modules.others("esm.embeddings.word_embeddings");
        long hidden = sizes.hidden();
        for (int i = 0; i < sizes.layers(); i++) {
            String own = "layers." + i + ".";
            String theirs = "esm.encoder.layer." + i + ".";
            modules.add(
                    own + "attention.qkv.linear",
                    hidden,
                    new Section(".query", theirs + "attention.self.query", hidden),
                    new Section(".key", theirs + "attention.self.key", hidden),
                    new Section(".value", theirs + "attention.self.value", hidden));
            modules.add(own + "attention.projection", hidden, theirs + "attention.output.dense", hidden);
            modules.add(own + "mlp.fc1", hidden, theirs + "intermediate.dense", sizes.inner());
            modules.add(own + "mlp.fc2", sizes.inner(), theirs + "output.dense", hidden);
        }
        modules.others("esm.contact_head.regression");
        if (classifier == null) {
            modules.add("head.dense", hidden, "lm_head.dense", hidden);
            modules.others("lm_head.decoder");
        } else if (classifier.task() == Esm2ClassifierConfig.Task.SEQUENCES) {
            modules.add("classifier.dense", hidden, "classifier.dense", hidden);
            modules.others("classifier.out_proj"); // here it has further rows, which fill it up
        } else {
            modules.others("classifier");
        }
        return modules;
    }

    /** Returns those of a decoder. */
    static PeftModules of(DecoderConfig config) {
        DecoderSizes sizes = config.sizes();
        var modules = new PeftModules(
                new Words(
                        "layers",
                        List.of("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
                        List.of("CAUSAL_LM")),
                null);
        modules.others("model.embed_tokens");
        long hidden = sizes.hidden();
        long width = (long) sizes.heads() * sizes.headDim();
        long keyWidth = (long) sizes.keyHeads() * sizes.headDim();
        for (int i = 0; i < sizes.layers(); i++) {
            String own = "layers." + i + ".";
            String attention = "model.layers." + i + ".self_attn.";
            String mlp = "model.layers." + i + ".mlp.";
            modules.add(
                    own + "attention.qkv.linear",
                    hidden,
                    new Section(".query", attention + "q_proj", width),
                    new Section(".key", attention + "k_proj", keyWidth),
                    new Section(".value", attention + "v_proj", keyWidth));
            modules.add(own + "attention.projection", width, attention + "o_proj", hidden);
            modules.add(
                    own + "mlp.fc1",
                    hidden,
                    new Section(".gate", mlp + "gate_proj", sizes.inner()),
                    new Section(".up", mlp + "up_proj", sizes.inner()));
            modules.add(own + "mlp.fc2", sizes.inner(), mlp + "down_proj", hidden);
        }
        modules.others("lm_head");
        return modules;
    }

    private void add(String product, long inputs, String module, long outputs) {
        add(product, inputs, new Section("", module, outputs));
    }

    private void add(String product, long inputs, Section... sections) {
        products.add(new Product(product, inputs, List.of(sections)));
        for (Section section : sections) {
            all.put(section.module, product + section.name);
        }
    }

    /** A module that cannot have adapters. */
    private void others(String module) {
        all.put(module, null);
    }

    /** Returns the names of all modules with a weight, and of the products that they are; null of those that cannot have adapters. */
    Map<String, @Nullable String> all() {
        return all;
    }

    /** Returns the group of a classifier's parameters, which are saved whole; null where there is no classifier. */
    @Nullable
    String head() {
        return classifier == null ? null : "classifier";
    }

    /** Returns what {@code task_type} may say, the usual one first. */
    List<String> tasks() {
        return words.tasks;
    }

    /** Returns what stands before the number of a layer in the names of its modules. */
    String layers() {
        return words.layers;
    }

    /** Returns the ends of the names of modules of a layer that can have adapters. */
    List<String> ends() {
        return words.ends;
    }

    /** Returns the names by which PEFT means the targets: short ones where they are adapted in each layer. */
    List<String> targets(LoraConfig lora) {
        List<String> adapted = all.entrySet().stream()
                .filter(module -> module.getValue() != null && lora.isTarget(module.getValue()))
                .map(Map.Entry::getKey)
                .toList();
        List<String> names = new ArrayList<>();
        List<String> left = new ArrayList<>(adapted);
        for (String end : words.ends) {
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

    /** Returns the modules that have adapters, in the order of the products. */
    List<Adapted> adapted(LoraConfig lora) {
        List<Adapted> adapted = new ArrayList<>();
        for (Product product : products) {
            long row = 0;
            for (Section section : product.sections) {
                String name = product.name + section.name;
                if (lora.isTarget(name)) {
                    adapted.add(new Adapted(product.name, section.module, row, section.outputs, lora.of(name)));
                }
                row += section.outputs;
            }
        }
        return adapted;
    }

    /** Returns the parameters that PEFT saves, and the tensors that make them. */
    List<Target> tensors(LoraConfig lora) {
        List<Target> tensors = new ArrayList<>();
        List<Adapted> adapted = adapted(lora);
        for (Product product : products) {
            List<Part> a = new ArrayList<>();
            List<Part> b = new ArrayList<>();
            for (Adapted one : adapted) {
                if (one.product.equals(product.name)) {
                    a.add(new Part(PREFIX + one.module + A + WEIGHT, one.lora.rank(), product.inputs));
                    b.add(new Part(PREFIX + one.module + B + WEIGHT, one.rows, one.lora.rank()));
                }
            }
            if (!a.isEmpty()) {
                tensors.add(new Target(product.name + A, a, Padding.NONE));
                tensors.add(new Target(product.name + B, b, Padding.NONE));
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

    /** Returns whether a parameter is one of adapters. */
    static boolean isAdapter(String parameter) {
        return parameter.endsWith(A) || parameter.endsWith(B);
    }

    /** Returns the columns of a parameter B, those of the largest rank. */
    static int columns(Target b) {
        return b.parts().stream()
                .mapToInt(part -> Math.toIntExact(part.sizes()[1]))
                .max()
                .orElseThrow();
    }

    /** Returns whether the tensors of a parameter B have fewer columns than it. */
    static boolean isUneven(Target target) {
        return target.parameter().endsWith(B)
                && target.parts().stream().anyMatch(part -> part.sizes()[1] < columns(target));
    }
}
