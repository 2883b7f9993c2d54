package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Adapters of decoders that PEFT wrote: logits, loss and gradients against those that it computed (src/test/vectors/make_peft.py). */
@Tag("L0")
@Tag("L1")
class PeftDecodersTest {
    /** On CUDA the products of an adapter are TF32 one after the other: they moved logits by 2.2e-2, gradients by 3.2e-2. */
    private static final double TOLERANCE =
            Provider.current() == Provider.CUDA ? 5e-2 : HuggingFaceDecoderTest.TOLERANCE;

    @TempDir
    private Path parent;

    /** Folders of adapters, and of the models that they adapt. */
    enum Stored {
        /** Grouped heads; ranks and alphas of their own. */
        LLAMA_PATTERNS("llama-patterns", "decoders/llama"),
        /** Heads wider than the hidden size, with norms. */
        QWEN3_QUERY_VALUE("qwen3-query-value", "decoders/qwen3");

        private final String name;
        private final StoredModel model;

        Stored(String name, String model) {
            this.name = name;
            this.model = new StoredModel(model);
        }

        Path folder() {
            return model.folder().resolve("../../../peft").resolve(name).normalize();
        }

        Path base() {
            return model.folder();
        }

        Map<String, float[]> vectors() {
            return StoredModel.floats(folder().resolve("vectors.safetensors"));
        }

        float[] expected(String vector) {
            return HuggingFaceEsm2Test.vector(vectors(), vector);
        }
    }

    private static float[] logits(Stored stored, Decoder model, Device device) {
        try (Pass pass = Pass.evaluation(device)) {
            HuggingFaceDecoderTest.begin(stored.model, pass);
            return HuggingFaceDecoderTest.used(
                    model, model.logits(HuggingFaceDecoderTest.ids(stored.model, pass), pass), device);
        }
    }

    @ParameterizedTest
    @EnumSource
    void logitsLossAndGradients(Stored stored) {
        LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder());
        try (Device device = Device.open();
                Decoder model = PeftAdapters.openDecoder(device, stored.base(), stored.folder(), DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            HuggingFaceEsm2Test.assertClose(
                    "logits", stored.expected("logits"), logits(stored, model, device), TOLERANCE);
            float loss = HuggingFaceDecoderTest.loss(model, stored.model, pass);
            assertEquals(stored.expected("loss")[0], loss, TOLERANCE * loss);
            compareGradients(stored, model, lora, device);
        }
    }

    private static void compareGradients(Stored stored, Decoder model, LoraConfig lora, Device device) {
        List<Target> targets = PeftModules.of(model.config()).tensors(lora);
        assertEquals(
                model.parameters().all().stream()
                        .filter(Parameter::isTrained)
                        .map(Parameter::name)
                        .collect(Collectors.toSet()),
                targets.stream().map(Target::parameter).collect(Collectors.toSet()),
                "nothing else is trained");
        for (Target target : targets) {
            Parameter parameter = model.parameters().get(target.parameter());
            float[] all = parameter.gradient().toFloats(device.stream());
            int columns = Math.toIntExact(parameter.shape().size(1));
            int first = 0;
            for (Part part : target.parts()) {
                int rows = Math.toIntExact(part.sizes()[0]);
                int own = Math.toIntExact(part.sizes()[1]);
                float[] actual = new float[rows * own];
                for (int i = 0; i < rows; i++, first += columns) {
                    System.arraycopy(all, first, actual, i * own, own);
                    for (int j = own; j < columns; j++) {
                        assertEquals(0, all[first + j], "a column that an adapter of a lower rank does not have");
                    }
                }
                HuggingFaceEsm2Test.assertClose(
                        part.tensor(), stored.expected("gradient." + part.tensor()), actual, TOLERANCE);
            }
            assertEquals(all.length, first);
        }
    }

    @ParameterizedTest
    @EnumSource
    void savedAndOpened(Stored stored) {
        LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder());
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Decoder model = PeftAdapters.openDecoder(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            PeftAdapters.save(model, lora, stored.base(), saved);
        }
        assertEquals(lora, PeftAdapters.config(stored.base(), saved));
        Map<String, float[]> before = StoredModel.floats(stored.folder().resolve(PeftSource.TENSORS));
        Map<String, float[]> after = StoredModel.floats(saved.resolve(PeftSource.TENSORS));
        assertEquals(before.keySet(), after.keySet());
        before.forEach((name, values) -> assertArrayEquals(values, after.get(name), name));
    }

    @ParameterizedTest
    @EnumSource
    void mergedModelsComputeTheSame(Stored stored) {
        try (Device device = Device.open();
                Decoder model = PeftAdapters.openMergedDecoder(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            assertTrue(model.parameters().all().stream().noneMatch(each -> PeftModules.isAdapter(each.name())));
            HuggingFaceEsm2Test.assertClose(
                    "logits", stored.expected("logits"), logits(stored, model, device), TOLERANCE);
        }
    }

    @Test
    void ranksAndAlphasFollowPatterns() {
        Stored stored = Stored.LLAMA_PATTERNS;
        LoraConfig lora = PeftAdapters.config(stored.base(), stored.folder());
        assertEquals(2, lora.of("layers.0.attention.qkv.linear.value").rank());
        assertEquals(3, lora.of("layers.1.attention.qkv.linear.query").alpha());
        assertEquals(4, lora.of("layers.0.mlp.fc1.up").rank());
        assertEquals(6, lora.of("layers.1.mlp.fc1.up").rank());
        assertEquals(5 / 4f, lora.of("layers.0.mlp.fc2").factor());
        assertEquals(2, lora.of("layers.0.mlp.fc1.gate").factor());
    }

    private String refusal(String field, @Nullable Object value) throws IOException {
        Path folder = Files.createDirectories(parent.resolve("refused"));
        Stored stored = Stored.QWEN3_QUERY_VALUE;
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
    void otherFieldsAreRefused() throws IOException {
        String at = PeftConfig.FILE + ": field ";
        assertEquals(at + "task_type: expected CAUSAL_LM, or none, got SEQ_CLS", refusal("task_type", "SEQ_CLS"));
        assertEquals(
                at + "modules_to_save: expected none, got [lm_head]", refusal("modules_to_save", List.of("lm_head")));
        assertEquals(
                at
                        + "target_modules: expected q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj or a"
                        + " part of them, which do not mean lm_head, got [lm_head]",
                refusal("target_modules", List.of("lm_head")));
        assertEquals(at + "layers_pattern: expected layers or none, got h", refusal("layers_pattern", "h"));
        assertEquals(
                "adapter_model.safetensors: tensor base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight:"
                        + " expected F32, F16 or BF16 [5, 16], as adapter_config.json says, got F32 [3, 16]",
                refusal("rank_pattern", Map.of("v_proj", 5)));
    }

    /** What PEFT computes with what is saved here. */
    @Tag("transformers")
    @ParameterizedTest
    @EnumSource
    void opensInPeft(Stored stored) throws IOException, InterruptedException {
        Path saved = parent.resolve("saved");
        try (Device device = Device.open();
                Decoder model = PeftAdapters.openDecoder(device, stored.base(), stored.folder(), DType.FLOAT32)) {
            PeftAdapters.save(model, PeftAdapters.config(stored.base(), stored.folder()), stored.base(), saved);
        }
        HuggingFaceEsm2Test.assertClose(
                "logits", stored.expected("logits"), PeftAdaptersTest.logitsOfPeft(stored.base(), saved, parent), 1e-5);
    }
}
