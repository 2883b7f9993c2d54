package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.TrainedModel;
import java.nio.file.Path;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * Opens a folder of transformers by the architecture that its {@code config.json} names.
 *
 * <p>Threading: the device's thread.
 */
public final class Models {
    private Models() {}

    /**
     * Returns whether a folder has a decoder, as its {@code config.json} says.
     *
     * @throws CheckpointException when the file cannot be read
     */
    public static boolean isDecoder(Path folder) {
        return DecoderFields.architecture(ModelSource.config(Objects.requireNonNull(folder, "folder")))
                .isPresent();
    }

    /**
     * Makes the model in a folder: an {@link dev.chagres.models.esm.Esm2} of {@code EsmForMaskedLM} and {@code NVEsmForMaskedLM}, an {@link
     * dev.chagres.models.esm.Esm2Classifier} of {@code EsmForTokenClassification} and {@code EsmForSequenceClassification}, a {@link
     * dev.chagres.models.decoder.Decoder} of {@code LlamaForCausalLM}, {@code Qwen2ForCausalLM}, {@code Qwen3ForCausalLM}, {@code
     * MistralForCausalLM}, {@code NVLlamaForCausalLM} and {@code NVQwen3ForCausalLM}.
     *
     * @param folder with {@code config.json} and safetensors files
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16
     * @throws CheckpointException when a file cannot be read, or has a model that is not supported; file and field or tensor are named
     * @throws dev.chagres.io.SafetensorsException when a safetensors file is damaged
     * @throws IllegalArgumentException when the type is no float
     */
    public static TrainedModel open(Device device, Path folder, DType dtype) {
        JsonObject config = ModelSource.config(Objects.requireNonNull(folder, "folder"));
        if (DecoderFields.architecture(config).isPresent()) {
            return DecoderCheckpoint.open(device, folder, dtype);
        }
        if (EsmArchitecture.classNames().stream().noneMatch(config.texts("architectures")::contains)) {
            throw config.refused(
                    "architectures",
                    "one of "
                            + Stream.concat(EsmArchitecture.classNames().stream(), DecoderLayout.classNames().stream())
                                    .toList());
        }
        return switch (EsmArchitecture.of(config)) {
            case MASKED_LM, NV_MASKED_LM -> Esm2Checkpoint.open(device, folder, dtype);
            case TOKENS, SEQUENCES -> Esm2Checkpoint.openClassifier(device, folder, dtype);
            case BASE ->
                throw config.refused("architectures", "a model with a loss; Esm2Checkpoint.openBase opens this one");
        };
    }
}
