package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.parameter.Parameter;
import java.nio.file.Path;
import java.util.Objects;

/**
 * ESM-2 in and out of folders of transformers: {@code EsmForMaskedLM}.
 *
 * <p>In: {@code config.json}, and {@code model.safetensors} or the files that {@code model.safetensors.index.json} names. Fields that say
 * something that this ESM-2 does not compute are refused, and so are tensors that it does not have. Names, types and shapes of all tensors are
 * checked before a model is made.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code EsmConfig}, {@code EsmForMaskedLM} and {@code EsmTokenizer} of transformers 5.17.
 */
public final class Esm2Checkpoint {
    private Esm2Checkpoint() {}

    /**
     * Returns sizes and form of the model in a folder, whose files are checked.
     *
     * @throws CheckpointException when a file cannot be read, or has a model that is not supported; file and field or tensor are named
     * @throws dev.chagres.io.SafetensorsException when a safetensors file is damaged
     */
    public static Esm2Config config(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            return source.config();
        }
    }

    /**
     * Returns the type that the weights in a folder were saved in.
     *
     * @throws CheckpointException as {@link #config}
     */
    public static DType dtype(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
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
    public static Esm2 open(Device device, Path folder, DType dtype) {
        Objects.requireNonNull(device, "device");
        Objects.requireNonNull(dtype, "dtype");
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            Esm2 model = make(device, source.config(), folder, dtype);
            try {
                source.load(model);
                return model;
            } catch (RuntimeException | Error failure) {
                model.close();
                throw failure;
            }
        }
    }

    private static Esm2 make(Device device, Esm2Config config, Path folder, DType dtype) {
        if (!dtype.isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got " + dtype);
        }
        try {
            return new Esm2(device, config, dtype, 0);
        } catch (IllegalArgumentException refused) {
            throw CheckpointException.of(
                    folder.resolve("config.json"),
                    "expected sizes that layers take: "
                            + CheckpointException.plain(String.valueOf(refused.getMessage())),
                    refused);
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
    public static void load(Esm2 model, Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            Esm2Config own = Objects.requireNonNull(model, "model").config();
            Esm2Config theirs = source.config().withContext(own.context()).withRecomputation(own.recomputation());
            if (!own.equals(theirs)) {
                throw new IllegalArgumentException(
                        "model: expected sizes and form of " + folder + ", " + theirs + ", got " + own);
            }
            ensureWhole(model);
            source.load(model);
        }
    }

    private static void ensureWhole(Esm2 model) {
        for (Parameter parameter : model.parameters().all()) {
            if (!parameter.shape().equals(parameter.wholeShape())) {
                throw new IllegalArgumentException("model: expected whole parameters on one rank, got "
                        + parameter.shape() + " of " + parameter.name() + ", which has " + parameter.wholeShape());
            }
        }
    }

    /**
     * Saves a model as transformers does: {@code config.json}, the tensors, and the files of the tokenizer, so that its {@code
     * AutoModelForMaskedLM} and {@code AutoTokenizer} open the folder. The tied decoder is left out. All files appear at once.
     *
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when a parameter is split among ranks, or the model has another GELU than {@code EsmForMaskedLM}: {@link
     *     dev.chagres.layer.GeluForm#TANH}
     */
    public static void save(Esm2 model, Path folder, SaveConfig config) {
        Objects.requireNonNull(model, "model");
        Objects.requireNonNull(folder, "folder");
        ensureWhole(model);
        new Esm2Writer(model, Objects.requireNonNull(config, "config")).write(folder);
    }
}
