package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.checkpoint.RunState;
import dev.chagres.parameter.Parameters;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * A model in a folder, checked: what {@code config.json} says, and for each parameter the tensors that make it. An architecture adds its
 * configuration, and says which tensors there are.
 *
 * <p>Threading: the device's thread.
 */
abstract class ModelSource implements AutoCloseable {
    private final JsonObject json;
    private final String className;
    private final String embedding;
    private final List<Target> targets;
    private final CheckpointWeights weights;

    /**
     * Owns the weights from here on.
     *
     * @param json the configuration
     * @param className the architecture's, for errors
     * @param embedding the tensor whose type is the model's, where the configuration has none
     * @param targets all parameters, whose tensors {@code weights} has found
     */
    ModelSource(JsonObject json, String className, String embedding, List<Target> targets, CheckpointWeights weights) {
        this.json = json;
        this.className = className;
        this.embedding = embedding;
        this.targets = targets;
        this.weights = weights;
    }

    /** Reads the configuration of a folder. */
    static JsonObject config(Path folder) {
        Path file = folder.resolve(CheckpointWeights.CONFIG);
        if (Files.notExists(file) && Files.exists(folder.resolve(PeftConfig.FILE))) {
            throw CheckpointException.of(
                    file,
                    "expected a file, got none, but " + PeftConfig.FILE
                            + ": these are adapters of PEFT, which PeftAdapters opens beside their model, and ./chagres"
                            + " convert adds to it",
                    null);
        }
        return JsonObject.read(file);
    }

    JsonObject json() {
        return json;
    }

    List<Target> targets() {
        return targets;
    }

    CheckpointWeights weights() {
        return weights;
    }

    /** Returns the type that the weights were saved in: that of the file's text, else that of the embedding. */
    DType dtype() {
        return json.dtype().orElseGet(() -> weights.entry(embedding).dtype());
    }

    /** Copies all weights into the parameters of a model of these sizes, and waits. */
    void load(Parameters parameters) {
        weights.load(targets, parameters);
    }

    /** Copies all weights to where a state keeps them, on each rank its parts. */
    void load(RunState state) {
        weights.load(targets, className, name -> false, state);
    }

    /** The same of a model that may have adapters. */
    void begin(RunState state) {
        weights.load(targets, className, PeftModules::isAdapter, state);
    }

    @Override
    public void close() {
        weights.close();
    }
}
