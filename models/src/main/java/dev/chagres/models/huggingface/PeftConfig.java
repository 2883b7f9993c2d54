package dev.chagres.models.huggingface;

import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.LoraConfig.Scaling;
import java.math.BigDecimal;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.jspecify.annotations.Nullable;

/**
 * The fields of an {@code adapter_config.json} of PEFT: what they say of a {@link LoraConfig}, and a refusal of each that says something else.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code LoraConfig} and {@code PeftConfig} of PEFT 0.21.
 */
record PeftConfig(JsonObject json) {
    static final String FILE = "adapter_config.json";

    private static final String TARGETS = "target_modules";
    private static final String SAVED = "modules_to_save";
    private static final String RANKS = "rank_pattern";
    private static final String ALPHAS = "alpha_pattern";
    /** The head, and a name that PEFT writes beside it whatever the model has. */
    private static final Set<String> HEADS = Set.of("classifier", "score");

    /** Fields that change nothing of what is computed with saved adapters. */
    private static final Set<String> IGNORED = Set.of(
            "auto_mapping",
            "base_model_name_or_path",
            "ensure_weight_tying",
            "inference_mode",
            "megatron_core",
            "peft_version",
            "qalora_group_size",
            "revision",
            "runtime_config");

    /** Fields that are read here. */
    private static final Set<String> READ = Set.of(
            "bias",
            "exclude_modules",
            "init_lora_weights",
            "layers_pattern",
            "layers_to_transform",
            "lora_alpha",
            "lora_dropout",
            "peft_type",
            "r",
            "task_type",
            "use_rslora",
            TARGETS,
            SAVED,
            RANKS,
            ALPHAS);

    private static final int MOST = 1 << 16;
    private static final Pattern LAYER = Pattern.compile(".*\\.layers?\\.(\\d+)\\..*");

    static PeftConfig read(Path folder) {
        return new PeftConfig(JsonObject.read(folder.resolve(FILE)));
    }

    /** Returns what the model is called, if it is. */
    Optional<Path> base() {
        String name = json.text("base_model_name_or_path", "");
        try {
            return name.isEmpty() ? Optional.empty() : Optional.of(Path.of(name));
        } catch (InvalidPathException refused) {
            throw json.refused("base_model_name_or_path", "a path");
        }
    }

    /** Returns the adapters of a model with these modules. */
    LoraConfig lora(PeftModules modules) {
        refuseOthers(modules);
        double alpha = json.number("lora_alpha", 8);
        if (!(alpha > 0) || alpha > Float.MAX_VALUE) {
            throw json.refused("lora_alpha", "a number above 0");
        }
        double dropout = json.number("lora_dropout", 0);
        if (!(dropout >= 0 && dropout < 1)) {
            throw json.refused("lora_dropout", "a number of at least 0 and below 1");
        }
        var lora = new LoraConfig(
                json.integer("r", 8, 1, MOST),
                (float) alpha,
                json.flag("use_rslora", false) ? Scaling.ROOT_OF_RANK : Scaling.RANK,
                (float) dropout,
                targets(modules),
                trained(modules),
                List.of());
        return withOwn(lora, modules);
    }

    /** Modules whose whole names, or ends of them, are a pattern's have its rank or alpha; the first pattern counts. */
    private LoraConfig withOwn(LoraConfig lora, PeftModules modules) {
        JsonObject ranks = patterns(RANKS);
        JsonObject alphas = patterns(ALPHAS);
        LoraConfig own = lora;
        for (PeftModules.Adapted adapted : modules.adapted(lora)) {
            String rankKey = pattern(ranks, RANKS, adapted.module());
            String alphaKey = pattern(alphas, ALPHAS, adapted.module());
            double alpha = alphaKey == null ? lora.alpha() : alphas.number(alphaKey, 8);
            if (!(alpha > 0) || alpha > Float.MAX_VALUE) {
                throw json.refused(ALPHAS, "numbers above 0");
            }
            int rank = rankKey == null ? lora.rank() : ranks.integer(rankKey, 8, 1, MOST);
            if (rank != lora.rank() || (float) alpha != lora.alpha()) {
                String name = Objects.requireNonNull(modules.all().get(adapted.module()));
                own = own.withOwn(name, rank, (float) alpha);
            }
        }
        return own;
    }

    private JsonObject patterns(String field) {
        return json.has(field) ? json.object(field) : new JsonObject(json.file(), Map.of(), "");
    }

    private @Nullable String pattern(JsonObject patterns, String field, String module) {
        for (String key : patterns.fields().keySet()) {
            if (matches(field, compiled(field, "(.*\\.)?(" + key + ")", "regular expressions as keys"), module)) {
                return key;
            }
        }
        return null;
    }

    private List<String> trained(PeftModules modules) {
        List<String> saved = json.texts(SAVED);
        String head = modules.head();
        for (String name : saved) {
            if (!HEADS.contains(name)) {
                throw json.refused(SAVED, head == null ? "none" : "classifier, the head, or none");
            }
        }
        return head != null && saved.contains("classifier") ? List.of(head) : List.of();
    }

    private Set<String> targets(PeftModules modules) {
        Object given = json.fields().get(TARGETS);
        if (given == null || "all-linear".equals(given)) {
            throw json.refused(TARGETS, "names of modules, or a regular expression that means some");
        }
        Predicate<String> chosen = matches(TARGETS);
        Predicate<String> excluded = json.has("exclude_modules") ? matches("exclude_modules") : module -> false;
        Set<Integer> layers = layers(modules.layers());
        Set<String> products = new LinkedHashSet<>();
        boolean savesHead = !trained(modules).isEmpty();
        for (Map.Entry<String, @Nullable String> module : modules.all().entrySet()) {
            String name = module.getKey();
            boolean isSaved = savesHead && (name.equals("classifier") || name.startsWith("classifier."));
            if (isSaved || !chosen.test(name) || excluded.test(name) || !isIn(layers, name)) {
                continue;
            }
            String product = module.getValue();
            if (product == null) {
                throw json.refused(
                        TARGETS, String.join(", ", modules.ends()) + " or a part of them, which do not mean " + name);
            }
            products.add(product);
        }
        if (products.isEmpty()) {
            throw json.refused(
                    TARGETS,
                    "names of modules of the model, such as " + modules.ends().getFirst());
        }
        return products;
    }

    /** A list has ends of names; a text is a regular expression for whole names. */
    private Predicate<String> matches(String field) {
        if (json.fields().get(field) instanceof String expression) {
            Pattern pattern = compiled(field, expression, "a regular expression");
            return module -> matches(field, pattern, module);
        }
        List<String> ends = json.texts(field);
        return module -> ends.stream().anyMatch(end -> module.equals(end) || module.endsWith("." + end));
    }

    private Pattern compiled(String field, String expression, String expected) {
        try {
            return Pattern.compile(expression);
        } catch (PatternSyntaxException | StackOverflowError e) {
            throw json.refused(field, expected);
        }
    }

    private boolean matches(String field, Pattern pattern, String module) {
        try {
            return pattern.matcher(new Counted(module)).matches();
        } catch (IllegalStateException | StackOverflowError endless) {
            throw json.refused(field, "a regular expression that is soon matched");
        }
    }

    /** The name of a module, whose characters can be read so often: some expressions would be matched for years. */
    private static final class Counted implements CharSequence {
        private static final int READS = 1_000_000;

        private final String text;
        private int reads;

        private Counted(String text) {
            this.text = text;
        }

        @Override
        public int length() {
            return text.length();
        }

        @Override
        public char charAt(int index) {
            if (++reads > READS) {
                throw new IllegalStateException("read too often");
            }
            return text.charAt(index);
        }

        @Override
        public CharSequence subSequence(int begin, int end) {
            return text.subSequence(begin, end);
        }

        @Override
        public String toString() {
            return text;
        }
    }

    /** Returns the numbers of the layers that are adapted; empty for all. */
    private Set<Integer> layers(String name) {
        Object given = json.fields().get("layers_to_transform");
        Object pattern = json.fields().get("layers_pattern");
        if (!isNothing(pattern) && !name.equals(pattern) && !List.of(name).equals(pattern)) {
            throw json.refused("layers_pattern", name + " or none");
        }
        Set<Integer> numbers = new LinkedHashSet<>();
        if (given == null) {
            return numbers;
        }
        for (Object value : given instanceof List<?> list ? list : List.of(given)) {
            if (!(value instanceof BigDecimal number)
                    || number.scale() > 0
                    || number.signum() < 0
                    || number.compareTo(BigDecimal.valueOf(MOST)) > 0) {
                throw json.refused("layers_to_transform", "numbers of layers, counted from 0");
            }
            numbers.add(number.intValue());
        }
        return numbers;
    }

    private static boolean isIn(Set<Integer> layers, String module) {
        if (layers.isEmpty()) {
            return true;
        }
        Matcher matcher = LAYER.matcher(module);
        return matcher.matches() && layers.contains(Integer.parseInt(matcher.group(1)));
    }

    private void refuseOthers(PeftModules modules) {
        expect("peft_type", "LORA");
        if (json.has("bias")) {
            expect("bias", "none");
        }
        if (json.has("task_type") && !modules.tasks().contains(json.text("task_type", ""))) {
            throw json.refused("task_type", String.join(" or ", modules.tasks()) + ", or none");
        }
        Object init = json.fields().get("init_lora_weights");
        if (init != null && !(init instanceof Boolean) && !"gaussian".equals(init)) {
            throw json.refused(
                    "init_lora_weights", "true, false or gaussian, which leave the model's weights as they are");
        }
        json.fields().forEach((field, value) -> {
            if (!READ.contains(field) && !IGNORED.contains(field) && !isNothing(value)) {
                throw json.refused(field, "none: it is not supported");
            }
        });
    }

    private void expect(String field, String only) {
        if (!json.text(field, "").equals(only)) {
            throw json.refused(field, only);
        }
    }

    private static boolean isNothing(@Nullable Object value) {
        return switch (value) {
            case null -> true;
            case Boolean flag -> !flag;
            case List<?> list -> list.isEmpty();
            case Map<?, ?> object -> object.isEmpty();
            default -> false;
        };
    }

    /** Returns the fields of a file that PEFT reads. */
    static Map<String, @Nullable Object> fields(LoraConfig lora, PeftModules modules, @Nullable Path base) {
        Map<String, @Nullable Object> fields = new TreeMap<>();
        fields.put("base_model_name_or_path", base == null ? null : base.toString());
        fields.put("bias", "none");
        fields.put("fan_in_fan_out", false);
        fields.put("inference_mode", true);
        fields.put("init_lora_weights", true);
        fields.put("lora_alpha", number(lora.alpha()));
        fields.put("lora_dropout", new BigDecimal(Float.toString(lora.dropout())));
        fields.put(SAVED, lora.trained().isEmpty() ? null : List.of("classifier"));
        fields.put("peft_type", "LORA");
        fields.put("r", lora.rank());
        fields.put(TARGETS, modules.targets(lora));
        fields.put("task_type", modules.tasks().getFirst());
        fields.put("use_dora", false);
        fields.put("use_rslora", lora.scaling() == Scaling.ROOT_OF_RANK);
        Map<String, Object> ranks = new LinkedHashMap<>();
        Map<String, Object> alphas = new LinkedHashMap<>();
        for (PeftModules.Adapted adapted : modules.adapted(lora)) {
            if (adapted.lora().rank() != lora.rank()) {
                ranks.put(adapted.module(), adapted.lora().rank());
            }
            if (adapted.lora().alpha() != lora.alpha()) {
                alphas.put(adapted.module(), number(adapted.lora().alpha()));
            }
        }
        fields.put(RANKS, ranks);
        fields.put(ALPHAS, alphas);
        return fields;
    }

    private static Object number(float value) {
        BigDecimal number = new BigDecimal(Float.toString(value)).stripTrailingZeros();
        return number.scale() <= 0 ? (Object) number.longValue() : (Object) number;
    }
}
