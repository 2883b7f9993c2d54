package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/**
 * Decoders in and out of folders of transformers: {@code LlamaForCausalLM}, {@code Qwen2ForCausalLM}, {@code Qwen3ForCausalLM} and {@code
 * MistralForCausalLM}; and of NVIDIA's recipes: {@code NVLlamaForCausalLM} and {@code NVQwen3ForCausalLM}.
 *
 * <p>In: {@code config.json}, and {@code model.safetensors} or the files that {@code model.safetensors.index.json} names. Each field of {@code
 * config.json} is taken, has no effect on what is computed, or is refused, and so are tensors that the model does not have. Names, types and
 * shapes of all tensors are checked before a model is made.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code LlamaConfig}, {@code Qwen2Config}, {@code Qwen3Config} and {@code MistralConfig} of transformers 5.17, and what their models
 * save.
 */
public final class DecoderCheckpoint {
    private DecoderCheckpoint() {}

    /**
     * Returns sizes and form of the model in a folder, whose files are checked.
     *
     * @throws CheckpointException when a file cannot be read, or has a model that is not supported; file and field or tensor are named
     * @throws dev.chagres.io.SafetensorsException when a safetensors file is damaged
     */
    public static DecoderConfig config(Path folder) {
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            return source.config();
        }
    }

    /**
     * Returns the type that the weights in a folder were saved in.
     *
     * @throws CheckpointException as {@link #config}
     */
    public static DType dtype(Path folder) {
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            return source.dtype();
        }
    }

    /**
     * Makes the model in a folder; its context is {@code max_position_embeddings}.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the type is no float
     */
    public static Decoder open(Device device, Path folder, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            return CheckpointWeights.loaded(
                    () -> new Decoder(device, source.config(), new ModelPlan(), memory),
                    model -> source.load(model.parameters()),
                    folder);
        }
    }

    /**
     * Copies the weights in a folder into a model, such as one that a trainer has made of {@link #config}.
     *
     * @param model on one rank, with whole parameters
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the model has other sizes or another form than the folder's, but for the context, or a parameter
     *     is split among ranks
     */
    public static void load(Decoder model, Path folder) {
        Objects.requireNonNull(model, "model");
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            ensureLike("model", model.config(), source, folder);
            CheckpointWeights.ensureWhole(model);
            source.load(model.parameters());
        }
    }

    private static void ensureLike(String argument, DecoderConfig own, DecoderSource source, Path folder) {
        DecoderConfig theirs = source.config().withContext(own.sizes().context());
        if (!own.sizes().equals(theirs.sizes()) || !own.form().equals(theirs.form())) {
            throw new IllegalArgumentException(argument + ": expected sizes and form of " + folder + ", "
                    + theirs.sizes() + " and " + theirs.form() + ", got " + own.sizes() + " and " + own.form());
        }
    }

    /**
     * Copies the weights in a folder to where ranks keep them: each of several ranks calls it with the weights that it trains together with the
     * others. Rank 0 reads the folder and sends the others their parts, tensor by tensor in pieces.
     *
     * @param weights alone, of a model of {@link #config}
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException on rank 0, when the weights are those of another model
     * @throws IllegalStateException when this is more than weights, or rank 0 failed
     */
    public static void load(RunState weights, Path folder) {
        Objects.requireNonNull(weights, "weights");
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            source.load(weights);
        }
    }

    /**
     * Returns how transformers finds the model in a folder, for a trainer: checkpoints of a run that are such folders.
     *
     * @param dtype of the weights
     * @param tokenizer the folder whose tokenizer's files lie beside them
     * @throws IllegalArgumentException when its rotation is none that transformers has
     */
    public static ModelFiles files(DecoderConfig config, DType dtype, Path tokenizer) {
        return new DecoderFiles(
                Objects.requireNonNull(config, "config"),
                DecoderLayout.TRANSFORMERS,
                Objects.requireNonNull(dtype, "dtype"),
                Objects.requireNonNull(tokenizer, "tokenizer"));
    }

    /**
     * Copies the weights in a folder to where ranks keep them, as {@link #load(RunState, Path)} does, of a model that a run fine-tunes: low-rank
     * adapters stay as they are.
     *
     * @param weights alone, of a model of {@link #config}
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException on rank 0, when the weights are those of another model
     * @throws IllegalStateException when this is more than weights, or rank 0 failed
     */
    public static void begin(RunState weights, Path folder) {
        Objects.requireNonNull(weights, "weights");
        try (DecoderSource source = DecoderSource.open(Objects.requireNonNull(folder, "folder"))) {
            source.begin(weights);
        }
    }

    /**
     * Saves a model as transformers does: {@code config.json} and the tensors, so that its {@code AutoModelForCausalLM} opens the folder, and
     * copies of the tokenizer's files. A tied weight is left out. All files appear at once.
     *
     * @param folder one that does not exist, or is empty; its parent exists
     * @param config its {@link SaveConfig#tokenizerFrom} is the folder that has the tokenizer
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when a parameter is split among ranks, {@code config} has another folder's tensors to copy, or the model
     *     has something that {@link DecoderLayout#NVIDIA} has not
     */
    public static void save(Decoder model, Path folder, SaveConfig config) {
        Objects.requireNonNull(folder, "folder");
        CheckpointWeights.ensureWhole(Objects.requireNonNull(model, "model"));
        if (Objects.requireNonNull(config, "config").unusedFrom().isPresent()) {
            throw new IllegalArgumentException(
                    "config: expected no folder of unused tensors, for a decoder computes with all, got "
                            + config.unusedFrom().get());
        }
        DecoderFiles files = new DecoderFiles(
                model.config(),
                config.decoderLayout(),
                model.parameters().dtype(),
                config.tokenizerFrom().orElse(null));
        CheckpointWriter.write(folder, files, model.parameters(), Map.of(), config.shardBytes());
    }
}
