package dev.chagres.models.huggingface;

import dev.chagres.io.SafetensorsEntry;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.CheckpointTensors.Found;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * A folder of PEFT with adapters of an ESM-2 in another folder, both checked.
 *
 * <p>Threading: the device's thread.
 */
final class PeftEsm2 implements AutoCloseable {
    private static final int MOST_LABELS = 1 << 24;

    private final Esm2Source base;
    private final PeftSource adapters;
    private final @Nullable Esm2ClassifierConfig classifier;

    private PeftEsm2(Esm2Source base, PeftConfig fields, Path folder) {
        this.base = base;
        Path path = folder.resolve(PeftSource.TENSORS);
        @Nullable Esm2ClassifierConfig[] found = {null};
        adapters = PeftSource.open(fields, folder, tensors -> {
            found[0] = classifier(fields, tensors, path);
            return PeftModules.of(base.config(), found[0]);
        });
        classifier = found[0];
        if (classifier != null
                && base.architecture().beginsClassifiers()
                && adapters.lora().trained().isEmpty()) {
            adapters.close();
            throw fields.json().refused("modules_to_save", "classifier, for the model's folder has no such head");
        }
    }

    /** Opens and checks both folders. */
    static PeftEsm2 open(Path model, Path adapters) {
        PeftConfig fields = PeftConfig.read(adapters);
        Esm2Source base = Esm2Source.open(model);
        try {
            if (base.architecture() == EsmArchitecture.NV_MASKED_LM) {
                throw CheckpointException.of(
                        model.resolve(CheckpointWeights.CONFIG),
                        "expected a model in the layout of transformers, whose modules adapters name, got one of"
                                + " NVIDIA's; convert it",
                        null);
            }
            return new PeftEsm2(base, fields, adapters);
        } catch (RuntimeException | Error failure) {
            base.close();
            throw failure;
        }
    }

    /** Of a masked-language model the adapters say what is classified, and their head how many classes there are. */
    private @Nullable Esm2ClassifierConfig classifier(PeftConfig fields, Map<String, Found> tensors, Path path) {
        if (!base.architecture().beginsClassifiers()) {
            return base.classifier();
        }
        return switch (fields.json().text("task_type", "")) {
            case "SEQ_CLS" -> sequences(labels("classifier.out_proj", 1, tensors, path));
            case "TOKEN_CLS" ->
                new Esm2ClassifierConfig(base.config(), Task.TOKENS, labels("classifier", 2, tensors, path));
            default -> {
                if (base.architecture() == EsmArchitecture.BASE) {
                    throw fields.json()
                            .refused(
                                    "task_type", "SEQ_CLS or TOKEN_CLS, for the model's folder has no head of its own");
                }
                yield null;
            }
        };
    }

    /** As transformers goes by the labels where no file says what they mean: one is a number. */
    private Esm2ClassifierConfig sequences(int labels) {
        Problem problem = labels == 1 ? Problem.REGRESSION : Problem.SINGLE_LABEL;
        return new Esm2ClassifierConfig(base.config(), Task.SEQUENCES, labels, problem);
    }

    private static int labels(String module, int least, Map<String, Found> tensors, Path path) {
        Found found = tensors.get(PeftModules.PREFIX + module + PeftModules.WEIGHT);
        SafetensorsEntry weight = found == null ? null : found.entry();
        if (weight == null
                || weight.sizes().length != 2
                || weight.sizes()[0] < least
                || weight.sizes()[0] > MOST_LABELS) {
            throw CheckpointException.ofTensor(
                    path,
                    PeftModules.PREFIX + module + PeftModules.WEIGHT,
                    "expected a head of " + (least == 1 ? "a label" : "two labels") + " or more, got "
                            + (weight == null ? "none" : Arrays.toString(weight.sizes())));
        }
        return Math.toIntExact(weight.sizes()[0]);
    }

    /** Returns sizes and form. */
    Esm2Config config() {
        return base.config();
    }

    /** Returns what is classified; null where the head is that of the masked-language model. */
    @Nullable
    Esm2ClassifierConfig classifier() {
        return classifier;
    }

    LoraConfig lora() {
        return adapters.lora();
    }

    /** Says that the folders have another head. */
    CheckpointException refused(String expected) {
        return CheckpointException.of(
                adapters.path(),
                "expected adapters of " + expected + ", got those of " + (classifier == null ? "none" : "one"),
                null);
    }

    /** Copies the weights of the model and of the adapters into parameters, and waits. */
    void load(Parameters parameters) {
        loadBase(parameters);
        adapters.load(parameters);
    }

    /** Copies the weights of the model, to which the adapters' products are added, and those of the head into parameters without adapters. */
    void loadMerged(Parameters parameters) {
        loadBase(parameters);
        adapters.merge(parameters);
    }

    private void loadBase(Parameters parameters) {
        if (classifier != null && base.architecture().beginsClassifiers()) {
            base.loadEncoder(parameters);
        } else {
            base.load(parameters);
        }
    }

    @Override
    public void close() {
        adapters.close();
        base.close();
    }
}
