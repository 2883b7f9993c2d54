package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Adapters that PEFT wrote: logits, loss and gradients against those that it computed (src/test/vectors/make_peft.py). */
@Tag("L0")
@Tag("L1")
class PeftAdaptersTest {
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 5e-3 : 1e-4;

    @TempDir
    private Path parent;

    /** Folders of adapters, and of the models that they adapt. */
    enum Stored {
        ALL_PRODUCTS("all-products", "sequences"),
        QUERY_VALUE("query-value", "tokens");

        private final String name;
        private final StoredModel model;

        Stored(String name, String model) {
            this.name = name;
            this.model = new StoredModel(model);
        }

        Path folder() {
            try {
                return Path.of(Objects.requireNonNull(Stored.class.getResource("/peft/" + name + "/" + PeftConfig.FILE))
                                .toURI())
                        .getParent();
            } catch (URISyntaxException impossible) {
                throw new IllegalStateException(impossible);
            }
        }

        Path base() {
            return model.folder();
        }

        Map<String, float[]> vectors() {
            return StoredModel.floats(folder().resolve("vectors.safetensors"));
        }
    }

    private static float[] logits(Stored stored, Esm2Classifier model, Device device) {
        try (Pass pass = Pass.evaluation(device)) {
            pass.begin();
            int[] lengths = stored.model.ints("lengths");
            pass.sequences(Sequences.packed(pass.scope(), lengths));
            Tensor logits = model.logits(HuggingFaceEsm2Test.tensor(stored.model.ints("ids"), pass), pass);
            return HuggingFaceClassifierTest.used(logits, model.config(), lengths, device);
        }
    }

    @ParameterizedTest
    @EnumSource
    void logitsLossAndGradients(Stored stored) {
        Map<String, float[]> vectors = stored.vectors();
        int[] lengths = stored.model.ints("lengths");
        LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder()).withDropout(0);
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openClassifier(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            HuggingFaceEsm2Test.assertClose(
                    "logits", HuggingFaceEsm2Test.vector(vectors, "logits"), logits(stored, model, device), TOLERANCE);
            // What is stored has no dropout, of which the first case has none and the second says 0.1.
            if (stored == Stored.QUERY_VALUE) {
                return;
            }
            try (Pass pass = Pass.training(device)) {
                pass.begin();
                pass.sequences(Sequences.packed(pass.scope(), lengths));
                Tensor loss = model.loss(
                        HuggingFaceEsm2Test.tensor(stored.model.ints("ids"), pass),
                        HuggingFaceEsm2Test.tensor(
                                HuggingFaceClassifierTest.labels(
                                        stored.model, model.config().task()),
                                pass),
                        pass);
                model.backward(1, null, pass);
                assertEquals(
                        HuggingFaceEsm2Test.vector(vectors, "loss")[0], loss.toFloats(device.stream())[0], TOLERANCE);
            }
            compareGradients(model, lora, vectors, device);
        }
    }

    @Test
    void namesOfClassesAreReadOrRefused() throws IOException {
        assertEquals(List.of(), PeftAdapters.labels(parent));
        Files.writeString(parent.resolve("labels.json"), "{\"id2label\": {\"1\": \"b\", \"0\": \"a\"}}");
        assertEquals(List.of("a", "b"), PeftAdapters.labels(parent));
        Files.writeString(parent.resolve("labels.json"), "{\"id2label\": {\"1\": \"b\"}}");
        assertTrue(String.valueOf(assertThrows(CheckpointException.class, () -> PeftAdapters.labels(parent))
                        .getMessage())
                .contains("id2label: expected a name for each number from 0 on"));
        Files.writeString(parent.resolve("adapter_config.json"), "{}");
        assertTrue(String.valueOf(assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(parent))
                        .getMessage())
                .contains("config.json: expected a file, got none, but adapter_config.json: these are adapters"));
    }

    @Test
    void gradientsOfAdaptersOfTwoSections() {
        Stored stored = Stored.QUERY_VALUE;
        LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder()).withDropout(0);
        assertEquals(5 / (float) Math.sqrt(3), lora.factor());
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        try (Device device = Device.open();
                Esm2Classifier model = new Esm2Classifier(
                        device,
                        Esm2Checkpoint.classifierConfig(stored.base()),
                        plan,
                        declared -> Parameters.allocate(device, declared, DType.FLOAT32, 0));
                PeftEsm2 source = PeftEsm2.open(stored.base(), stored.folder());
                Pass pass = Pass.training(device)) {
            source.load(model.parameters());
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.model.ints("lengths")));
            Tensor loss = model.loss(
                    HuggingFaceEsm2Test.tensor(stored.model.ints("ids"), pass),
                    HuggingFaceEsm2Test.tensor(stored.model.ints("labels"), pass),
                    pass);
            model.backward(1, null, pass);
            Map<String, float[]> vectors = stored.vectors();
            assertEquals(HuggingFaceEsm2Test.vector(vectors, "loss")[0], loss.toFloats(device.stream())[0], TOLERANCE);
            compareGradients(model, lora, vectors, device);
        }
    }

    private static void compareGradients(
            Esm2Classifier model, LoraConfig lora, Map<String, float[]> vectors, Device device) {
        List<Target> targets =
                PeftModules.of(model.config().encoder(), model.config()).tensors(lora);
        assertEquals(
                model.parameters().all().stream()
                        .filter(Parameter::isTrained)
                        .map(Parameter::name)
                        .collect(Collectors.toSet()),
                targets.stream().map(Target::parameter).collect(Collectors.toSet()),
                "nothing else is trained");
        for (Target target : targets) {
            float[] all = model.parameters().get(target.parameter()).gradient().toFloats(device.stream());
            int first = 0;
            for (Target.Part part : target.parts()) {
                String tensor = part.tensor();
                float[] expected = HuggingFaceEsm2Test.vector(vectors, "gradient." + tensor);
                HuggingFaceEsm2Test.assertClose(
                        tensor, expected, Arrays.copyOfRange(all, first, first + expected.length), TOLERANCE);
                first += expected.length;
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void savedAndOpened(Stored stored) {
        // @start region="peft"
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openClassifier(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder());
            PeftAdapters.save(model, lora, stored.base(), parent.resolve("saved")); // PEFT opens it
            // @end
            assertEquals(lora, PeftAdapters.config(stored.base(), parent.resolve("saved")));
        }
        Map<String, float[]> before = StoredModel.floats(stored.folder().resolve(PeftSource.TENSORS));
        Map<String, float[]> after = StoredModel.floats(parent.resolve("saved").resolve(PeftSource.TENSORS));
        assertEquals(before.keySet(), after.keySet());
        before.forEach((name, values) -> assertArrayEquals(values, after.get(name), name));
    }

    @ParameterizedTest
    @EnumSource
    void mergedModelsComputeTheSame(Stored stored) {
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openMergedClassifier(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            assertTrue(model.parameters().all().stream().noneMatch(p -> PeftModules.isAdapter(p.name())));
            HuggingFaceEsm2Test.assertClose(
                    "logits",
                    HuggingFaceEsm2Test.vector(stored.vectors(), "logits"),
                    logits(stored, model, device),
                    TOLERANCE);
        }
    }

    /** The folder of a masked-language model has no head of a classifier: that of the adapters' file says what it classifies. */
    @Test
    void headsOfMaskedLanguageModels() {
        Path base = new StoredModel("token-dropout").folder();
        LoraConfig lora = LoraConfig.of(2, "query", "fc2").withAlpha(3).withTrained("classifier");
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        var config = new Esm2ClassifierConfig(Esm2Checkpoint.config(base), Task.SEQUENCES, 7);
        try (Device device = Device.open();
                Esm2Classifier model = new Esm2Classifier(
                        device, config, plan, declared -> Parameters.allocate(device, declared, DType.FLOAT32, 4))) {
            Esm2Checkpoint.load(model, base);
            PeftAdapters.save(model, lora, null, parent.resolve("head"));
            try (Esm2Classifier again =
                    PeftAdapters.openClassifier(device, base, parent.resolve("head"), DType.FLOAT32)) {
                assertEquals(config, again.config());
                for (Parameter parameter : model.parameters().all()) {
                    float[] expected = parameter.weight().toFloats(device.stream());
                    float[] actual =
                            again.parameters().get(parameter.name()).weight().toFloats(device.stream());
                    // Rows of further classes, which fill the head up to 16, are not saved.
                    int used = parameter.name().startsWith("classifier.projection")
                            ? expected.length / 16 * config.labels()
                            : expected.length;
                    assertArrayEquals(Arrays.copyOf(expected, used), Arrays.copyOf(actual, used), parameter.name());
                }
            }
            assertEquals(
                    List.of("query", "esm.encoder.layer.0.output.dense", "esm.encoder.layer.1.output.dense"),
                    JsonObject.read(parent.resolve("head").resolve(PeftConfig.FILE))
                            .texts("target_modules"));
        }
    }

    @Test
    void adaptersOfMaskedLanguageModels() {
        Path base = new StoredModel("token-dropout").folder();
        LoraConfig lora = LoraConfig.of(2, "key", "head.dense");
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        try (Device device = Device.open();
                Esm2 model = new Esm2(
                        device,
                        Esm2Checkpoint.config(base),
                        plan,
                        declared -> Parameters.allocate(device, declared, DType.FLOAT32, 4))) {
            Esm2Checkpoint.load(model, base);
            PeftAdapters.save(model, lora, base, parent.resolve("mlm"));
            try (Esm2 again = PeftAdapters.open(device, base, parent.resolve("mlm"), DType.FLOAT32)) {
                assertEquals(
                        model.parameters().all().toString(),
                        again.parameters().all().toString());
            }
            assertEquals(
                    "lora: expected the adapters that the model was made with, got " + lora.withTargets("key")
                            + " of a model with 6 matrices of adapters",
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> PeftAdapters.save(
                                            model, lora.withTargets("key"), base, parent.resolve("other")))
                            .getMessage());
        }
    }

    private String refusal(String field, @Nullable Object value) throws IOException {
        Path folder = parent.resolve("refused");
        Stored stored = Stored.ALL_PRODUCTS;
        Files.createDirectories(folder);
        Files.copy(
                stored.folder().resolve(PeftSource.TENSORS),
                folder.resolve(PeftSource.TENSORS),
                StandardCopyOption.REPLACE_EXISTING);
        Map<String, @Nullable Object> fields = new LinkedHashMap<>(
                JsonObject.read(stored.folder().resolve(PeftConfig.FILE)).fields());
        fields.put(field, value);
        JsonText.write(folder.resolve(PeftConfig.FILE), fields);
        CheckpointException refusal =
                assertThrows(CheckpointException.class, () -> PeftAdapters.config(stored.base(), folder));
        return String.valueOf(refusal.getMessage()).substring(folder.toString().length() + 1);
    }

    @Test
    void numbersAndExpressionsThatNeverEndAreRefused() throws IOException {
        String endless = "((((((.*)*)*)*)*)*)*x";
        String soon = ": expected a regular expression that is soon matched, got ";
        assertTrue(refusal("target_modules", endless).contains("target_modules" + soon));
        assertTrue(refusal("exclude_modules", endless).contains("exclude_modules" + soon));
        assertTrue(refusal("rank_pattern", Map.of(endless, 2)).contains("rank_pattern" + soon));
        assertTrue(refusal("target_modules", "(".repeat(50_000)).contains("target_modules: expected a regular expr"));
        assertTrue(refusal("layers_to_transform", List.of(1L << 32)).contains("expected numbers of layers"));
        assertTrue(refusal("unknown", 1).contains("not supported"));
        Path file = parent.resolve("refused").resolve(PeftConfig.FILE);
        for (String number : List.of("1e99999999999", "1e-999999999", "0e1001")) {
            Files.writeString(file, "{\"r\": " + number + "}");
            assertEquals(
                    file + ": expected a JSON file: a number with an exponent over 1000",
                    assertThrows(
                                    CheckpointException.class,
                                    () -> PeftAdapters.config(Stored.ALL_PRODUCTS.base(), parent.resolve("refused")))
                            .getMessage());
        }
    }

    @Test
    void otherFieldsAreRefused() throws IOException {
        String at = PeftConfig.FILE + ": field ";
        assertEquals(at + "peft_type: expected LORA, got IA3", refusal("peft_type", "IA3"));
        assertEquals(at + "r: expected an integer from 1 to 65536, got 0", refusal("r", 0));
        assertEquals(at + "lora_alpha: expected a number above 0, got -1", refusal("lora_alpha", -1));
        assertEquals(
                at + "lora_dropout: expected a number of at least 0 and below 1, got 1.5",
                refusal("lora_dropout", 1.5));
        assertEquals(at + "use_rslora: expected true or false, got yes", refusal("use_rslora", "yes"));
        assertEquals(at + "bias: expected none, got all", refusal("bias", "all"));
        assertEquals(at + "task_type: expected SEQ_CLS, or none, got TOKEN_CLS", refusal("task_type", "TOKEN_CLS"));
        assertEquals(
                at + "modules_to_save: expected classifier, the head, or none, got [lm_head]",
                refusal("modules_to_save", List.of("lm_head")));
        assertEquals(
                at + "rank_pattern.query: expected an integer from 1 to 65536, got 0",
                refusal("rank_pattern", Map.of("query", 0)));
        assertEquals(
                at + "rank_pattern: expected regular expressions as keys, got {(=2}",
                refusal("rank_pattern", Map.of("(", 2)));
        assertEquals(
                at + "alpha_pattern: expected numbers above 0, got {value=-1}",
                refusal("alpha_pattern", Map.of("value", -1)));
        assertEquals(at + "alpha_pattern: expected an object, got 3", refusal("alpha_pattern", 3));
        assertEquals(
                at
                        + "init_lora_weights: expected true, false or gaussian, which leave the model's weights as"
                        + " they are, got pissa",
                refusal("init_lora_weights", "pissa"));
        for (String field : List.of("use_dora", "lora_bias", "fan_in_fan_out", "use_qalora", "a_field_to_come")) {
            assertEquals(at + field + ": expected none: it is not supported, got true", refusal(field, true));
        }
        assertEquals(
                at
                        + "target_modules: expected names of modules, or a regular expression that means some, got"
                        + " all-linear",
                refusal("target_modules", "all-linear"));
        assertEquals(
                at + "target_modules: expected names of modules of the model, such as query, got [q_proj]",
                refusal("target_modules", List.of("q_proj")));
        assertTrue(refusal("target_modules", List.of("word_embeddings"))
                .endsWith("which do not mean esm.embeddings.word_embeddings, got [word_embeddings]"));
        assertEquals(
                "adapter_model.safetensors: tensor"
                        + " base_model.model.esm.encoder.layer.0.attention.output.dense.lora_A.weight: expected a tensor"
                        + " of adapter_config.json's target_modules, got another one",
                refusal("target_modules", ".*(query|key|value|intermediate.dense|0.output.dense)"));
        assertEquals(
                "adapter_model.safetensors: tensor"
                        + " base_model.model.esm.encoder.layer.0.attention.self.query.lora_A.weight: expected F32, F16 or"
                        + " BF16 [8, 16], as adapter_config.json says, got F32 [4, 16]",
                refusal("r", 8));
    }

    /** What PEFT computes with what is saved here. */
    @Tag("transformers")
    @ParameterizedTest
    @EnumSource
    void opensInPeft(Stored stored) throws IOException, InterruptedException {
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2Classifier model =
                        PeftAdapters.openClassifier(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            PeftAdapters.save(model, PeftAdapters.config(stored.base(), stored.folder()), stored.base(), saved);
        }
        HuggingFaceEsm2Test.assertClose(
                "logits",
                HuggingFaceEsm2Test.vector(stored.vectors(), "logits"),
                logitsOfPeft(stored.base(), saved, parent),
                1e-5);
    }

    /** Returns the logits of PEFT for adapters in {@code saved}, and the packed sequences of the model's vectors. */
    static float[] logitsOfPeft(Path base, Path saved, Path parent) throws IOException, InterruptedException {
        Path output = parent.resolve("logits.safetensors");
        TransformersPython.run(parent, "logits_of_peft.py", base, saved, base.resolve("vectors.safetensors"), output);
        return HuggingFaceEsm2Test.vector(StoredModel.floats(output), "logits");
    }
}
