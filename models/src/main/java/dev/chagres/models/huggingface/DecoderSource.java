package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.checkpoint.RunState;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Predicate;

/**
 * A decoder in a folder, checked: what {@code config.json} says, and for each parameter the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class DecoderSource implements AutoCloseable {
    private final JsonObject json;
    private final DecoderConfig config;
    private final CheckpointWeights weights;
    private final List<Target> targets;

    private final DecoderLayout layout;

    private DecoderSource(JsonObject json, DecoderConfig config, DecoderLayout layout, CheckpointWeights weights) {
        this.json = json;
        this.config = config;
        this.layout = layout;
        this.weights = weights;
        weights.ensureHas(DecoderTensors.last(config, layout));
        targets = DecoderTensors.targets(config, layout);
        targets.forEach(target -> weights.find(target, CheckpointWeights.Rows.SAME));
        boolean isTied = config.form().head() == DecoderForm.Head.TIED;
        weights.refuseOthers(
                "a " + layout.className(config.form().architecture()) + " of "
                        + config.sizes().layers() + " layers",
                name -> DecoderTensors.isUnused(name) || (isTied && name.equals(DecoderTensors.HEAD)));
        if (isTied) {
            weights.checkTied(DecoderTensors.HEAD, DecoderTensors.EMBEDDING);
        }
    }

    /** Opens and checks a folder. */
    static DecoderSource open(Path folder) {
        JsonObject json = JsonObject.read(folder.resolve(CheckpointWeights.CONFIG));
        DecoderArchitecture architecture = DecoderFields.architecture(json)
                .orElseThrow(() -> json.refused("architectures", "one of " + DecoderLayout.classNames()));
        DecoderFields fields = new DecoderFields(json, architecture);
        DecoderConfig config = fields.config(); // before any other file is read
        CheckpointWeights weights = new CheckpointWeights(CheckpointTensors.open(folder), DecoderTensors::namesOf);
        try {
            return new DecoderSource(json, config, fields.layout(), weights);
        } catch (RuntimeException | Error failure) {
            weights.close();
            throw failure;
        }
    }

    /** Refuses another layout. */
    void ensureLayout(DecoderLayout expected) {
        if (layout != expected) {
            throw json.refused(
                    "architectures",
                    expected.className(config.form().architecture())
                            + ", whose modules adapters name; DecoderCheckpoint.save converts it");
        }
    }

    /** Returns sizes, form and special tokens. */
    DecoderConfig config() {
        return config;
    }

    /** Returns the type that the weights were saved in: that of the file's text, else that of the embedding. */
    DType dtype() {
        return json.dtype()
                .orElseGet(() -> weights.entry(DecoderTensors.EMBEDDING).dtype());
    }

    /** Copies all weights into the parameters of a model of these sizes, and waits. */
    void load(Parameters parameters) {
        weights.load(targets, parameters);
    }

    /** Copies all weights to where a state keeps them, on each rank its parts. */
    void load(RunState state) {
        load(state, name -> false);
    }

    /** The same of a model that may have adapters. */
    void begin(RunState state) {
        load(state, PeftModules::isAdapter);
    }

    private void load(RunState state, Predicate<String> left) {
        weights.load(targets, config.form().architecture().className(), left, state);
    }

    @Override
    public void close() {
        weights.close();
    }
}
