package dev.chagres.models.huggingface;

import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import java.nio.file.Path;
import java.util.List;

/**
 * A decoder in a folder, checked: what {@code config.json} says, and for each parameter the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class DecoderSource extends ModelSource {
    private final DecoderConfig config;
    private final DecoderLayout layout;

    private DecoderSource(JsonObject json, DecoderConfig config, DecoderLayout layout, CheckpointWeights weights) {
        String className = config.form().architecture().className();
        weights.ensureHas(DecoderTensors.last(config, layout));
        List<Target> targets = DecoderTensors.targets(config, layout);
        targets.forEach(target -> weights.find(target, CheckpointWeights.Rows.SAME));
        boolean isTied = config.form().head() == DecoderForm.Head.TIED;
        weights.refuseOthers(
                "a " + layout.className(config.form().architecture()) + " of "
                        + config.sizes().layers() + " layers",
                name -> DecoderTensors.isUnused(name) || (isTied && name.equals(DecoderTensors.HEAD)));
        if (isTied) {
            weights.checkTied(DecoderTensors.HEAD, DecoderTensors.EMBEDDING);
        }
        super(json, className, DecoderTensors.EMBEDDING, targets, weights);
        this.config = config;
        this.layout = layout;
    }

    /** Opens and checks a folder. */
    static DecoderSource open(Path folder) {
        JsonObject json = config(folder);
        DecoderArchitecture architecture = DecoderFields.architecture(json)
                .orElseThrow(() -> json.refused("architectures", "one of " + DecoderLayout.classNames()));
        DecoderFields fields = new DecoderFields(json, architecture);
        DecoderConfig config = fields.config(); // before any other file is read
        return CheckpointWeights.orClosed(
                new CheckpointWeights(CheckpointTensors.open(folder), DecoderTensors::namesOf),
                weights -> new DecoderSource(json, config, fields.layout(), weights));
    }

    /** Refuses another layout. */
    void ensureLayout(DecoderLayout expected) {
        if (layout != expected) {
            throw json().refused(
                            "architectures",
                            expected.className(config.form().architecture())
                                    + ", whose modules adapters name; DecoderCheckpoint.save converts it");
        }
    }

    /** Returns sizes, form and special tokens. */
    DecoderConfig config() {
        return config;
    }
}
